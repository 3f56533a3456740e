"""A device that runs our CUDA kernels on the CPU, so that their data movement is tested without a GPU.

The source is taken as it is, but for the functions that hold inline assembly: `emulator/cuda_on_cpu.hpp` has a model of
each. A C++ compiler turns it into a library; launches then go through the same launchers as on a GPU. Shows wrong
addresses, fragments, barriers and waits; shows nothing of speed, caches or the memory model.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llmrs_cli.kernels.launch import Kernel, Shape
from llmrs_cli.kernels.loader import Unit, spliced

MODEL = Path(__file__).parent / "emulator"
_FUNCTION = re.compile(r"^(?:template <[^\n]*>\s)?DEVICE [^\n]*(?:\}\n|\{\n(?:.*\n)*?\}\n)", re.MULTILINE)
_ASSEMBLY = re.compile(r"asm|\bWGMMA\(")
_ENTRY = re.compile(
    r'^extern "C" __global__ void (?:__cluster_dims__\((\w+), 1, 1\) )?__launch_bounds__\([^()]*\) (\w+)\('
    r"|^KERNEL\((\w+),(?:.* __cluster_dims__\((\d+))?",
    re.MULTILINE,
)
_SHARED = re.compile(r"extern __shared__ __align__\(\d+\) (\w+) (\w+)\[\];")


class HostArray(np.ndarray[Any, Any]):
    """A NumPy array that names its address as CuPy's do."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def host(values: NDArray[Any]) -> HostArray:
    """A copy of `values` at an address that vector loads accept."""
    memory = np.empty(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    out = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out.view(HostArray)


def for_cpu(source: str) -> str:
    """The source without the functions that hold inline assembly, and with an entry for each kernel."""
    plain = _FUNCTION.sub(lambda match: "" if _ASSEMBLY.search(match.group()) else match.group(), source)
    entries = "".join(
        f"KERNEL_ENTRY({name or listed}, {own or cluster or 1})\n"
        for own, name, listed, cluster in _ENTRY.findall(source)
    )
    return (
        '#include "standard.hpp"\n#include "cuda_on_cpu.hpp"\n'
        + _SHARED.sub(r"\1* \2 = (\1*)shared_memory;", plain)
        + entries
    )


@dataclass
class EmulatedDevice:
    """Compiles each unit once, in `folder`."""

    folder: Path
    hopper: bool = False
    """Whether sources see the instructions of sm_90a."""
    arch: int = 0
    """What `__CUDA_ARCH__` is, if not 0."""
    together: bool = False
    """Whether the blocks of a launch run at the same time, so that they may wait for each other."""
    seed: int = 0
    multiprocessors: int = 3
    shared_limit: int = 227 << 10
    _libraries: dict[Unit, ctypes.CDLL] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if shutil.which("g++") is None:
            if os.environ.get("LLMRS_REQUIRE_COMPILER"):
                pytest.fail("There is no C++ compiler, and it is required here.")
            pytest.skip(reason="needs a C++ compiler to play the GPU: apt-get install g++")

    @property
    def loader(self) -> Any:
        """What says of which architecture it is."""
        return SimpleNamespace(arch="sm_90a" if self.hopper else "sm_80")

    def launch(self, kernel: Kernel, shape: Shape, slots: bytes) -> None:
        library = self._libraries.get(kernel.unit)
        if library is None:
            library = self._libraries[kernel.unit] = self._compile(kernel.unit)
        threads, across, deep = shape.block
        assert (across, deep) == (1, 1)
        grid = (ctypes.c_int * 3)(*shape.grid)
        getattr(library, f"run_{kernel.name}")(grid, threads, slots, self.seed)
        self.seed += 1

    def _compile(self, unit: Unit) -> ctypes.CDLL:
        stem = self.folder / f"{len(self._libraries)}-{unit.stem}"
        stem.with_suffix(".cpp").write_text(for_cpu(spliced(unit.stem)))
        macros = [
            *(f"-D{name}={value}" for name, value in unit.macros),
            *([f"-DARCH={self.arch}"] if self.arch else []),
            *(["-DTOGETHER"] if self.together else []),
            *(["-DHOPPER"] if self.hopper else []),
        ]
        library = stem.with_suffix(".so")
        _compiler(
            f"-I{_headers(self.folder)}",
            f"-I{MODEL}",
            *macros,
            "-shared",
            str(stem.with_suffix(".cpp")),
            "-o",
            str(library),
        )
        return ctypes.CDLL(str(library))


def _compiler(*arguments: str) -> None:
    """Threads jump from stack to stack, which checks of the C library take for an error."""
    options = ["-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-w", "-pthread", "-fPIC"]
    done = subprocess.run(["g++", *options, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


def _headers(folder: Path) -> Path:
    """Where headers of the C++ library lie compiled, a third of the work for a kernel: once a run, beside `folder`."""
    run = folder.parent.parent if "PYTEST_XDIST_WORKER" in os.environ else folder.parent
    ahead = run / "headers"
    if not ahead.exists():
        making = Path(tempfile.mkdtemp(dir=run))
        _compiler("-x", "c++-header", str(MODEL / "standard.hpp"), "-o", str(making / "standard.hpp.gch"))
        with suppress(OSError):  # another process of the run was quicker
            making.rename(ahead)
    return ahead
