"""A GPU that only pretends, for the host side of the CUDA backend: CuPy's names over NumPy, kernels in Python.

`cuda_backend` opens the real backend on it. Arrays are NumPy arrays with an address; `Device` checks nothing
(launchers do) and runs what moves integers: `scatter` and `gather`, and `sample` draws `drawn(row, position)`.
All other kernels only count as launched, so logits are whatever memory holds.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmrs_cli.kernels.launch import Kernel, Shape
from tests.helpers.launches import plain_maps

VOCAB = 97
"""Ids that `drawn` gives."""
CUDA_MODULES = tuple(
    f"llmrs_cli.engine.backends.cuda{part}"
    for part in (
        "",
        "_attention",
        "_memory",
        "_rows",
        "_draws",
        "_linear",
        "_dense",
        "_fixed",
        "_upload",
        "_part",
        "_results",
        "_packed",
        "_copies",
        "_units",
    )
)
"""What imports CuPy by name: imported anew under the fake, and forgotten after it."""


def drawn(row: int, position: int) -> int:
    """The token that follows `position` of `row`."""
    return (31 * row + 7 * position + 5) % VOCAB


class _Memory:
    """What an array's `data` says of itself."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class Array(np.ndarray[Any, Any]):
    """A NumPy array that knows its address as CuPy's do."""

    @property
    def data(self) -> Any:
        return _Memory(self.__array_interface__["data"][0])

    def set(self, values: Any, stream: Any = None) -> None:
        self[...] = values


def _array(values: Any) -> Any:
    return np.ascontiguousarray(values).view(Array)


class Pinned(bytearray):
    """Host memory at a fixed address."""

    @property
    def ptr(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))

    @property
    def mem(self) -> Any:
        return SimpleNamespace(size=len(self))


class DriverError(Exception):
    """A driver that fails."""


class RuntimeFailure(Exception):
    """A GPU that fails."""


class Event:
    """Something that has always happened already; its time is the number of launches before it, in ms."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.count = 0

    def record(self, stream: Any = None) -> None:
        self.count = Stream.launches

    def synchronize(self) -> None:
        pass


Launch = Callable[[], None]


class Graph:
    """A recording: a replay runs what was launched while it was made."""

    def __init__(self, launches: list[Launch]) -> None:
        self.launches = launches

    def launch(self, stream: Any = None) -> None:
        Stream.launches += len(self.launches)
        for launch in self.launches:
            launch()


class Stream:
    """Work that is done as it is enqueued, or put on the tape while one runs."""

    ptr = 0
    tape: ClassVar[list[Launch] | None] = None
    launches: ClassVar[int] = 0
    """So far, replayed ones included."""
    taken: ClassVar[list[int]] = []
    """Bytes of each allocation that no array has."""

    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def use(self) -> Stream:
        return self

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        pass

    def begin_capture(self) -> None:
        Stream.tape = []

    def end_capture(self) -> Graph:
        launches, Stream.tape = Stream.tape, None
        assert launches is not None
        return Graph(launches)


class Device:
    """Takes the place of `CudaDevice`."""

    name = "NVIDIA Pretence"
    multiprocessors = 132
    shared_limit = 227 << 10
    library = "pretence"

    def __init__(self, ordinal: int = 0, cache: Any = None) -> None:
        self.ordinal = ordinal
        self.loader = SimpleNamespace(arch="sm_90a")
        self.launched: Counter[str] = Counter()
        self.built: list[Any] = []
        self.threads: list[str] = []
        """That said they use it."""
        self.computes = True
        """Whether integers are moved; without it a launch costs nothing."""

    def build(self, units: Any, progress: Any = None) -> None:
        self.built += units

    def use(self) -> None:
        self.threads.append(threading.current_thread().name)

    def synchronise(self) -> None:
        pass

    def launch(self, kernel: Kernel, shape: Shape, slots: bytes) -> None:
        run = _KERNELS.get(kernel.name)
        launch = partial(run, shape, struct.unpack(f"<{len(slots) // 8}Q", slots)) if run else _nothing
        if not self.computes:
            launch = _nothing
        if Stream.tape is None:
            self.launched[kernel.name] += 1
        _enqueue(launch)


def _enqueue(launch: Launch) -> None:
    """Run it now, or put it on the tape."""
    if Stream.tape is not None:
        Stream.tape.append(launch)
        return
    Stream.launches += 1
    launch()


def _nothing() -> None:
    """A launch of a kernel that is not played."""


def _words(address: int, count: int) -> NDArray[np.int32]:
    return (
        np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(address))
        if count
        else np.zeros(0, np.int32)
    )


def _scatter(shape: Shape, slots: tuple[int, ...]) -> None:
    table, words, runs = slots[:3]
    for low, high, offset, count in (
        _words(table, 4 * (runs & 0xFFFFFFFF)).view(np.uint32).reshape(-1, 4).tolist()
    ):
        ctypes.memmove(low | high << 32, words + 4 * offset, 4 * count)


def _gather(shape: Shape, slots: tuple[int, ...]) -> None:
    tokens, scores, pool_width, table_width = (slot & 0xFFFFFFFF for slot in slots[8:])
    rows, positions, ids, into = (_words(address, tokens) for address in slots[2:6])
    for i, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        if row < 0:
            ids[i], into[i] = -1, -1
            continue
        ids[i] = _words(slots[0] + 4 * (row * pool_width + position), 1)[0]
        block = int(_words(slots[1] + 4 * (row * table_width + position // 64), 1)[0])
        into[i] = block * 64 + position % 64
    targets = _words(slots[7], scores)
    for i, token in enumerate(_words(slots[6], scores).tolist()):
        at = int(rows[token]) * pool_width + int(positions[token]) + 1
        targets[i] = _words(slots[0] + 4 * at, 1)[0]


def _sample(shape: Shape, slots: tuple[int, ...]) -> None:
    count = shape.grid[1]
    out, pool, pool_width = slots[14], slots[10], slots[19] & 0xFFFFFFFF
    if slots[20]:
        out = int(_words(slots[20], 2).view(np.uint64)[0])
    found = _words(out, 2 * count).reshape(count, 2)
    rows, at = _words(slots[1], count).tolist(), _words(slots[2], count).tolist()
    for i, (row, token) in enumerate(zip(rows, at, strict=True)):
        if row < 0:
            continue
        position = int(_words(slots[3] + 4 * token, 1)[0])
        found[i] = drawn(row, position), 0
        _words(pool + 4 * (row * pool_width + position + 1), 1)[0] = found[i, 0]


_KERNELS = {"scatter": _scatter, "gather": _gather, "sample": _sample}


class Gemm:
    """Takes the place of cuBLASLt; a launch that multiplies nothing."""

    def __init__(self, *_: Any, measures: bool = True) -> None:
        self.measures = measures
        self.shapes: set[tuple[int, int, int]] = set()
        """(M, N, K) of the products so far."""

    def __call__(self, bf16: bool, x: Any, weight: Any, out: Any, *_: Any, **__: Any) -> None:
        assert x.shape[1] == weight.shape[1] and out.shape == (len(x), len(weight))
        self.shapes.add((len(x), *weight.shape))
        _enqueue(_nothing)


def fake_cupy() -> ModuleType:
    """A module that can stand for `cupy`."""
    stream = Stream()
    pool = SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None, used_bytes=lambda: 0)
    module = ModuleType("cupy")
    found: Any = module
    for name in ("uint8", "uint16", "uint32", "int32", "float32", "float16"):
        setattr(found, name, getattr(np, name))
    found.ndarray = Array
    found.zeros = lambda *a, **k: _array(np.zeros(*a, **k))
    found.empty = lambda *a, **k: _array(np.zeros(*a, **k))
    found.arange = lambda *a, **k: _array(np.arange(*a, **k))
    found.asarray = lambda values, *a: _array(np.asarray(values, *a))
    found.asnumpy = np.asarray
    found.get_default_memory_pool = lambda: pool
    found.cuda = cuda = ModuleType("cupy.cuda")
    parts: Any = cuda
    parts.Stream, parts.Event, parts.alloc_pinned_memory = Stream, Event, Pinned
    parts.alloc = Stream.taken.append
    parts.Device = lambda ordinal=0: SimpleNamespace(use=lambda: None, synchronize=lambda: None)
    parts.get_current_stream = lambda: stream
    parts.get_elapsed_time = lambda start, end: float(end.count - start.count)
    parts.driver = SimpleNamespace(CUDADriverError=DriverError)
    parts.runtime = SimpleNamespace(
        CUDARuntimeError=RuntimeFailure,
        memGetInfo=lambda: (64 << 30, 139 << 30),
        getDeviceCount=lambda: 1,
        memcpyAsync=lambda target, source, size, kind, stream: ctypes.memmove(target, source, size) and None,
    )
    return module


@contextmanager
def cuda_backend(deterministic: bool = False, packed: bool = True) -> Iterator[Any]:
    """A CudaBackend that runs on nothing; the real modules are back afterwards."""
    before = {name: sys.modules.pop(name, None) for name in ("cupy", "cupy.cuda", *CUDA_MODULES)}
    fake: Any = fake_cupy()
    sys.modules |= {"cupy": fake, "cupy.cuda": fake.cuda}
    try:
        import llmrs_cli.engine.backends.cuda as module

        made: Any = module
        made.CudaDevice, made.Gemm = Device, Gemm
        with tempfile.TemporaryDirectory() as folder, plain_maps():
            made.default_cache = made.default_folder = lambda: Path(folder)
            yield made.CudaBackend(0, deterministic, packed=packed)
    finally:
        for name, known in before.items():
            sys.modules.pop(name, None)
            if known is not None:
                sys.modules[name] = known
