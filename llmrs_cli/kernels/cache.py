"""Where compiled kernels and loops are kept; not who may read them, nor how they are written.

`kernels` imports nothing of ours but errors, so this repeats the rules of `config.directories` for the cache folder.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$LLMRS_CACHE_DIR, else `llmrs` in $XDG_CACHE_HOME, a relative one of which does not count, or in ~/.cache."""
    if own := os.environ.get("LLMRS_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "llmrs"
