"""Every loop that Python calls, with its one signature; compiled, or loaded from the disk, before use.

Numba keeps machine code on disk by pickle, so only a folder of the user's own will do: 0700, owner
checked, else nothing is kept. It lies under a hash of all sources here, because Numba does not notice
a change in a function that another file calls.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

import numba

from llmrs_cli.kernels.cache import cache_folder
from llmrs_cli.kernels.simd import attention, crew, fill, layer, linear, logprobs, sample
from llmrs_cli.kernels.simd.kinds import (
    BOARD,
    BYTES,
    COUNTS,
    FLAGS,
    HEADS,
    INDICES,
    INT,
    MASK,
    ORDER,
    PLACE,
    REAL,
    ROWS,
    SHARE,
    SIZES,
    TABLE,
    UNITS,
    VALUES,
    WORDS,
)
from llmrs_cli.kernels.simd.target import cpu_name

config: Any = numba.config
HELP_OUT: Any = numba.njit(nogil=True, error_model="numpy")(crew.help_out)
Loop = Callable[..., None]

SIGNATURES: dict[Any, tuple[Any, ...]] = {
    linear.linear: (INT, INT, BOARD, ROWS, VALUES, REAL, BYTES, TABLE, VALUES, ORDER, INT, ROWS),
    attention.attend: (INT, BOARD, HEADS, VALUES, PLACE, INDICES, INDICES, TABLE, REAL, INT, ROWS),
    layer.finish_qkv: (
        *(INT, BOARD, ROWS, INDICES, INDICES, ROWS, ROWS),
        *(VALUES, VALUES, REAL, VALUES, PLACE, HEADS),
    ),
    layer.embed: (BYTES, ORDER, INDICES, ROWS),
    layer.rms_norm: (ROWS, VALUES, REAL, ROWS),
    layer.silu_mul: (ROWS, ROWS),
    layer.rotate: (HEADS, INDICES, ROWS, ROWS),
    layer.store_kv: (HEADS, HEADS, VALUES, PLACE, INDICES),
    sample.draw: (
        *(INT, BOARD, ROWS, TABLE, ROWS, COUNTS, COUNTS),
        *(INDICES, VALUES, INDICES, MASK, INDICES, FLAGS),
    ),
    logprobs.score: (INT, BOARD, ROWS, INDICES, VALUES, FLAGS, TABLE, ROWS),
    fill.from_words: (WORDS, SIZES, INT, MASK, MASK, MASK, INT, INT),
    fill.from_tiles: (WORDS, SIZES, UNITS, INT, WORDS, INT),
    HELP_OUT: (BOARD,),
}
LATER = (fill.from_words, fill.from_tiles, layer.silu_mul, layer.rotate, layer.store_kv)
"""Loops that few models need, and single ones of what is fused elsewhere: compiled when they are first called."""


@dataclass(frozen=True, slots=True)
class Program:
    """The loops, ready to be called; each one's arguments stand where it is defined, addresses apart."""

    linear: Loop
    attend: Loop
    finish_qkv: Loop
    embed: Loop
    rms_norm: Loop
    silu_mul: Loop
    rotate: Loop
    store_kv: Loop
    draw: Loop
    score: Loop
    from_words: Loop
    from_tiles: Loop
    help_out: Loop
    notice: str | None
    """Why machine code is not kept, in one sentence, or None if it is."""
    shares: tuple[Any, ...]
    """The C functions behind the addresses, which must live as long."""


@cache
def load(folder: Path | None) -> Program:
    """Compile every loop but those for `LATER`, or load it from under `folder` (None: keep nothing).

    Takes about half a minute where nothing is kept yet. Later calls of the process cost nothing.
    """
    place, notice = (None, None) if folder is None else private_folder(folder)
    with kept_in(place):
        shares = [
            numba.cfunc(SHARE, cache=place is not None, error_model="numpy")(function)
            for function in (
                linear.by_dots,
                linear.by_panels,
                attention.attend_share,
                layer.finish_share,
                sample.draw_share,
                logprobs.score_share,
            )
        ]
        for loop in SIGNATURES:
            if loop not in LATER:
                _compile(loop, keep=place is not None)
    from_words, from_tiles, silu_mul, rotate, store_kv = (
        partial(_when_called, loop, place, Lock()) for loop in LATER
    )
    dots, panels, attend, finish, draw, score = (share.address for share in shares)
    return Program(
        linear=partial(linear.linear, dots, panels),
        attend=partial(attention.attend, attend),
        finish_qkv=partial(layer.finish_qkv, finish),
        embed=layer.embed,
        rms_norm=layer.rms_norm,
        silu_mul=silu_mul,
        rotate=rotate,
        store_kv=store_kv,
        draw=partial(sample.draw, draw),
        score=partial(logprobs.score, score),
        from_words=from_words,
        from_tiles=from_tiles,
        help_out=HELP_OUT,
        notice=notice,
        shares=tuple(shares),
    )


def _compile(loop: Any, *, keep: bool) -> None:
    """Compile an entry for its one signature; another one is an error from then on."""
    if loop.signatures:
        return
    if keep:
        loop.enable_caching()
    loop.compile(SIGNATURES[loop])
    loop.disable_compile()


def _when_called(loop: Any, place: Path | None, lock: Lock, *arguments: Any) -> None:
    """Call a loop of `LATER`; the first of several threads compiles it."""
    if not loop.signatures:
        with lock, kept_in(place):
            _compile(loop, keep=place is not None)
    loop(*arguments)


@contextmanager
def kept_in(folder: Path | None) -> Iterator[None]:
    """Let Numba keep what is compiled meanwhile in `folder`: it reads its configuration at that moment."""
    before = config.CACHE_DIR
    config.CACHE_DIR = before if folder is None else str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


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
    return cache_folder() / "simd"
