"""Bring what tests need to this machine before they run: no test needs a network or waits for a compiler.

`python -m tests.fetch`; `make test` runs it. `tests.helpers.smollm2` finds the built-in model afterwards,
and the compiled loops of the CPU backend lie in the user's cache, as for anybody who has run it once.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from llmrs_cli.config import directories
from llmrs_cli.engine.backends.registry import open_backend
from llmrs_cli.errors import LlmrsError
from llmrs_cli.hub.builtin import locate_built_in
from llmrs_cli.hub.progress import Silent
from tests.helpers.smollm2 import NEEDED


def main() -> int:
    """0 even without the model, whose tests are then skipped; 1 where it must be here, as in CI."""
    print("Compiling the loops of the CPU backend, about a minute the first time ...", file=sys.stderr)
    with suppress(LlmrsError):  # its tests say why it cannot be used
        open_backend("cpu").close()
    try:
        locate_built_in(directories().cache, offline=False, progress=Silent())
    except LlmrsError as error:
        print(f"The built-in model, which some tests need, cannot be fetched: {error}", file=sys.stderr)
        return int(NEEDED in os.environ)
    return 0


if __name__ == "__main__":
    sys.exit(main())
