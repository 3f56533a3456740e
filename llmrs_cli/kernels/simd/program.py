"""Every loop that Python calls, with its one signature; compiled, or loaded from the disk, before use.

Numba keeps machine code on disk by pickle, so only a folder of the user's own will do: 0700, owner
checked, else nothing is kept. It lies under a hash of all sources here, because Numba does not notice
a change in a function that another file calls.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import numba

from llmrs_cli.kernels.simd import attention, layer, linear, sample
from llmrs_cli.kernels.simd.target import cpu_name

config: Any = numba.config
types: Any = numba.types
_F32, _F64, _I32, _INT = types.float32, types.float64, types.int32, types.int64


def _array(kind: Any, rank: int) -> Any:
    return types.Array(kind, rank, "C")


_VALUES, _ROWS, _HEADS = (_array(_F32, rank) for rank in (1, 2, 3))
_INDICES, _TABLE, _BYTES = _array(_I32, 1), _array(_I32, 2), _array(types.uint8, 1)
_FLAGS = _array(types.boolean, 1)
_ORDER, _PLACE = types.UniTuple(_INT, 6), types.UniTuple(_INT, 5)

LOOPS: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (linear.linear, (_ROWS, _VALUES, _F64, _BYTES, _TABLE, _VALUES, _ORDER, _INT, _ROWS, _INT)),
    (attention.attend, (_HEADS, _VALUES, _PLACE, _INDICES, _INDICES, _TABLE, _F64, _INT, _ROWS, _INT)),
    (
        layer.finish_qkv,
        (_ROWS, _INDICES, _INDICES, *(_ROWS,) * 2, *(_VALUES,) * 2, _F64, _VALUES, _PLACE, _HEADS, _INT),
    ),
    (layer.embed, (_BYTES, _ORDER, _INDICES, _ROWS)),
    (layer.rms_norm, (_ROWS, _VALUES, _F64, _ROWS)),
    (layer.silu_mul, (_ROWS, _ROWS)),
    (layer.rotate, (_HEADS, _INDICES, _ROWS, _ROWS)),
    (layer.store_kv, (_HEADS, _HEADS, _VALUES, _PLACE, _INDICES)),
    (
        sample.draw,
        (
            *(_ROWS, _TABLE, _ROWS, *(_array(_INT, 2),) * 2, _INDICES, _VALUES, _INDICES),
            *(_array(types.uint32, 2), _INDICES, _FLAGS, _INT),
        ),
    ),
    (sample.score, (_ROWS, _INDICES, _VALUES, _FLAGS, _TABLE, _ROWS, _INT)),
)


def prepare(cache: Path | None) -> str | None:
    """Make every loop callable; a sentence if machine code cannot be kept in `cache`, else None.

    Takes about half a minute where nothing is kept yet. Later calls of the process cost nothing.
    """
    if all(loop.signatures for loop, _ in LOOPS):
        return None
    folder, notice = (None, None) if cache is None else private_folder(cache)
    for loop, signature in LOOPS:
        if folder is not None:
            _keep(loop, folder)
        loop.compile(signature)
        loop.disable_compile()
    return notice


def private_folder(cache: Path) -> tuple[Path | None, str | None]:
    """The folder for these sources and this machine under `cache`, or None and why there is none."""
    folder = cache / program_key()
    try:
        for place in (*reversed(folder.parents), folder):
            place.mkdir(mode=0o700, exist_ok=True)
        for place in (cache, folder):
            status = place.stat()
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                return (
                    None,
                    f"Compiled loops are not kept: {str(place)!r} is open to other users (chmod 700).",
                )
    except OSError as error:
        return None, f"Compiled loops are not kept: {error.strerror}."
    if not os.access(folder, os.W_OK):
        return None, "Compiled loops are not kept: the cache folder is read-only."
    return folder, None


def program_key() -> str:
    """Hash of these sources, Numba's version and the machine."""
    digest = hashlib.sha256(f"{numba.__version__} {cpu_name()}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def default_cache() -> Path:
    """`simd` in the user's cache folder for llmrs."""
    named = os.environ.get("LLMRS_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute() / "simd"
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "llmrs" / "simd"


def _keep(loop: Any, folder: Path) -> None:
    """Let one loop be kept in `folder`. Numba takes the folder from its configuration at this moment."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        loop.enable_caching()
    finally:
        config.CACHE_DIR = before
