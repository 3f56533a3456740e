"""Bring the built-in model to this machine before the tests, so that no test needs a network.

`python -m tests.fetch`; `make test` runs it. `tests.helpers.smollm2` finds the file afterwards.
"""

from __future__ import annotations

import os
import sys

from llmrs_cli.config import directories
from llmrs_cli.errors import LlmrsError
from llmrs_cli.hub.builtin import locate_built_in
from llmrs_cli.hub.progress import Silent
from tests.helpers.smollm2 import NEEDED


def main() -> int:
    """0 even without the file, whose tests are then skipped; 1 where it must be here, as in CI."""
    try:
        locate_built_in(directories().cache, offline=False, progress=Silent())
    except LlmrsError as error:
        print(f"The built-in model, which some tests need, cannot be fetched: {error}", file=sys.stderr)
        return int(NEEDED in os.environ)
    return 0


if __name__ == "__main__":
    sys.exit(main())
