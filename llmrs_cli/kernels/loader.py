"""CUDA source → cubin: splices local headers, compiles with NVRTC, keeps cubins on disk.

A `Unit` is one `.cu` file with a set of macros. Its key covers everything that could change the cubin: the
source with its local headers spliced in, the options, the NVRTC version and the architecture. Our sources
include nothing but each other, so no CUDA headers are needed on the machine. This module loads nothing
into a GPU (`device.py` does) and needs none: every architecture compiles anywhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.cache import cache_folder

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
"""What every kernel is compiled for; sm_90a is Hopper with its own instructions."""

SOURCES = Path(__file__).parent
OPTIONS = ("--std=c++17", "--ptxas-options=-v", "-default-device", "-diag-suppress=177")
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"[^\n]*\n', re.MULTILINE)
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Unit:
    """One translation unit: `<stem>.cu` compiled with macros, such as ("BF16", 1)."""

    stem: str
    macros: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.stem, *(f"{name}={value}" for name, value in self.macros)])


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code for one architecture, and what the assembler said about registers and spills."""

    code: bytes
    log: str = ""
    """Empty when the code came from the cache."""


def arch_for(major: int, minor: int) -> str:
    """The architecture to compile for on a card of compute capability major.minor.

    Raises EngineFault for cards before Ampere, which lack the instructions that every kernel uses.
    """
    if major < 8:
        raise EngineFault(
            f"This GPU has compute capability {major}.{minor}; llmrs needs 8.0 (Ampere, 2020) or newer.",
            hint="Use --device cpu on this machine.",
        )
    if (major, minor) == (9, 0):
        return "sm_90a"
    best = [arch for arch in ("sm_80", "sm_86", "sm_89", "sm_100", "sm_120") if _runs(arch, major, minor)]
    if not best:
        raise EngineFault(
            f"This GPU has compute capability {major}.{minor}, which llmrs does not know yet.",
            hint="Use --device cpu, or a newer llmrs.",
        )
    return best[-1]


def _runs(arch: str, major: int, minor: int) -> bool:
    """A cubin runs on its own major version, from its minor version on."""
    number = int(arch.removeprefix("sm_"))
    return number // 10 == major and number % 10 <= minor


@cache
def spliced(stem: str) -> str:
    """Source of `<stem>.cu` with each local header in place of its first include."""
    seen: set[str] = set()

    def splice(text: str) -> str:
        return _INCLUDE.sub(lambda match: header(match.group(1)), text)

    def header(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        return splice((SOURCES / name).read_text(encoding="utf-8"))

    return splice((SOURCES / f"{stem}.cu").read_text(encoding="utf-8"))


def options_for(unit: Unit, arch: str) -> tuple[str, ...]:
    """Command line of the compiler for one unit."""
    return (f"-arch={arch}", *OPTIONS, *(f"-D{name}={value}" for name, value in unit.macros))


def compile_unit(unit: Unit, arch: str) -> Cubin:
    """Compile one unit with NVRTC; raises EngineFault with the compiler's own words."""
    from cuda.bindings import nvrtc

    source = spliced(unit.stem).encode()
    program = _checked(nvrtc.nvrtcCreateProgram(source, f"{unit.stem}.cu".encode(), 0, [], []))
    try:
        options = [option.encode() for option in options_for(unit, arch)]
        status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
        log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0\n").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise EngineFault(f"The kernel {unit} does not compile for {arch}: {text}")
        code = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
        return Cubin(code, text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def nvrtc_version() -> str:
    """Version of the compiler that is installed, as "13.0"."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def _checked(answer: tuple[Any, ...]) -> Any:
    """The value of an NVRTC call, or EngineFault."""
    if int(answer[0]) != 0:
        raise EngineFault(f"The CUDA compiler failed ({answer[0].name}).")
    return answer[1] if len(answer) > 1 else None


def unit_key(unit: Unit, arch: str, version: str) -> str:
    """Name of a unit's cubin: a hash of all that it depends on."""
    parts = (spliced(unit.stem), *options_for(unit, arch), version)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class CubinCache:
    """Cubins on disk, one file a key: a digest, then the code. Safe against other processes.

    The folder must belong to us and be closed to others, since its files run on the GPU; where it is not,
    the cache is off and `notice` says why.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notice = why_unusable(folder, "Kernels")

    def get(self, key: str) -> bytes | None:
        """The cubin of `key`; None if absent or damaged."""
        if self.notice:
            return None
        try:
            stored = self._path(key).read_bytes()
        except OSError:
            return None
        code = stored[_DIGEST:]
        return code if hashlib.sha256(code).digest() == stored[:_DIGEST] else None

    def put(self, key: str, code: bytes) -> None:
        """Store a cubin whole or not at all; a full or read-only disk only costs the next start."""
        if self.notice:
            return
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".part-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            Path(name).replace(self._path(key))
        except OSError as error:
            self.notice = f"Kernels cannot be cached ({error.strerror})."
            Path(name).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.cubin"


def why_unusable(folder: Path, what: str) -> str | None:
    """Why `folder` cannot hold `what`, code that we run or that steers it, or None; creates it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        return f"{what} are not cached: the cache folder cannot be made ({error.strerror})."
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        return f"{what} are not cached: the cache folder is open to other users (chmod 700 it)."
    return None if os.access(folder, os.W_OK) else f"{what} are not cached: the cache folder is read-only."


def default_cache() -> Path:
    """`kernels` in the user's cache folder for llmrs, by the rules of `config.directories`."""
    return cache_folder() / "kernels"


@dataclass(frozen=True, slots=True)
class Loader:
    """Cubins for one architecture, from the cache or from the compiler."""

    arch: str
    cache: CubinCache
    compiler: Callable[[Unit, str], Cubin] = compile_unit
    version: Callable[[], str] = nvrtc_version

    def load(self, unit: Unit) -> bytes:
        """Machine code of one unit."""
        key = unit_key(unit, self.arch, self.version())
        code = self.cache.get(key)
        if code is None:
            code = self.compiler(unit, self.arch).code
            self.cache.put(key, code)
        return code

    def missing(self, units: Iterable[Unit]) -> list[Unit]:
        """Those of `units` that would have to be compiled."""
        return [u for u in units if self.cache.get(unit_key(u, self.arch, self.version())) is None]

    def build(
        self,
        units: Iterable[Unit],
        progress: Callable[[int, int], None] | None = None,
        workers: int | None = None,
    ) -> None:
        """Compile what is missing, in parallel; `progress(done, total)` is called after each."""
        todo = self.missing(units)
        with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
            for done, future in enumerate(as_completed([pool.submit(self.load, u) for u in todo]), 1):
                future.result()
                if progress is not None:
                    progress(done, len(todo))
