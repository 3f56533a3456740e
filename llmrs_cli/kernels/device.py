"""The GPU that kernels run on: loads cubins, launches on CuPy's current stream, with early start.

Launches go through cuLaunchKernelEx, because CuPy cannot set the attribute of programmatic dependent
launch: a kernel may start while the one before it drains, and waits by itself (`wait_for_previous`) before it
touches what the other wrote. Captured into a graph the attribute becomes a programmatic edge.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from llmrs_cli.errors import EngineFault
from llmrs_cli.kernels.launch import Kernel, Shape
from llmrs_cli.kernels.loader import CubinCache, Loader, Unit, arch_for

DEFAULT_SHARED = 48 * 1024
"""Dynamic shared memory that needs no opt-in."""
SHARED_UNIT = 128
"""Shared memory is given in multiples of this."""


class CudaDevice:
    """One GPU and its loaded kernels. Not shared between threads."""

    def __init__(self, ordinal: int, cache: CubinCache) -> None:
        import cupy
        from cuda.bindings import driver

        self._driver = driver
        self._cupy = cupy
        self.ordinal = ordinal
        self.use()
        properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
        self.multiprocessors: int = properties["multiProcessorCount"]
        self.name: str = properties["name"].decode()
        self.shared_limit: int = properties["sharedMemPerBlockOptin"]
        self._shared_all: int = properties["sharedMemPerMultiprocessor"]
        self._shared_reserved: int = properties["reservedSharedMemPerBlock"]
        self.loader = Loader(arch_for(properties["major"], properties["minor"]), cache)
        self.library = library_versions()
        """What measured choices depend on beside the GPU."""
        self._early = properties["major"] >= 9
        self._modules: dict[Unit, Any] = {}
        self._functions: dict[Kernel, _Function] = {}
        self._allowed: dict[tuple[Unit, str], int] = {}
        """Dynamic shared memory that a function may use so far; several kernels may share one."""
        self._configs: dict[tuple[Shape, int], Any] = {}
        self._attribute = driver.CUlaunchAttribute()
        self._attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        self._attribute.value.programmaticStreamSerializationAllowed = 1

    def build(self, units: Sequence[Unit], progress: Callable[[int, int], None] | None = None) -> None:
        """Compile what is missing in parallel and load everything, so that no later launch compiles."""
        self.loader.build(units, progress)
        for unit in units:
            self._module(unit)

    def _module(self, unit: Unit) -> Any:
        if unit not in self._modules:
            module = self._cupy.cuda.function.Module()
            module.load(self.loader.load(unit))
            self._modules[unit] = module
        return self._modules[unit]

    def launch(self, kernel: Kernel, shape: Shape, slots: bytes) -> None:
        """Enqueue on CuPy's current stream; raises EngineFault with the driver's word for a failure."""
        function = self._functions.get(kernel)
        if function is None:
            function = self._functions[kernel] = _Function(
                self._module(kernel.unit).get_function(kernel.name), kernel
            )
        stream = self._cupy.cuda.get_current_stream().ptr
        config = self._configs.get((shape, stream))
        if config is None:
            config = self._configs[shape, stream] = self._config(shape, stream)
        if config.sharedMemBytes > function.shared:
            function.shared = self._allow_shared(kernel, function.handle.ptr, config.sharedMemBytes)
        ctypes.memmove(function.slots, slots, len(slots))
        (status,) = self._driver.cuLaunchKernelEx(config, function.handle.ptr, function.pointers_at, 0)
        if int(status):
            raise EngineFault(f"A kernel could not be launched ({status.name}).")

    def _config(self, shape: Shape, stream: int) -> Any:
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes = self.shared_for(shape)
        config.hStream = stream
        config.attrs = [self._attribute] if self._early else []
        config.numAttrs = 1 if self._early else 0
        return config

    def shared_for(self, shape: Shape) -> int:
        """Dynamic shared memory of a block: what it uses, or what keeps more than `at_once` from fitting."""
        if not shape.at_once:
            return shape.shared
        least = self._shared_all // (shape.at_once + 1) - self._shared_reserved + 1
        return max(shape.shared, min(-(-least // SHARED_UNIT) * SHARED_UNIT, self.shared_limit))

    def use(self) -> None:
        """Make this GPU and its context those of the calling thread."""
        self._cupy.cuda.Device(self.ordinal).use()

    def synchronise(self) -> None:
        """Wait for everything enqueued on this GPU, on any stream."""
        self._cupy.cuda.Device(self.ordinal).synchronize()

    def _allow_shared(self, kernel: Kernel, handle: int, size: int) -> int:
        """Raise a function's limit to `size` bytes; what it may use now, at least that."""
        size = max(size, self._allowed.get((kernel.unit, kernel.name), 0))
        attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = self._driver.cuFuncSetAttribute(handle, attribute, size)
        if int(status):
            raise EngineFault(f"This GPU cannot give a kernel {size} bytes of shared memory ({status.name}).")
        self._allowed[kernel.unit, kernel.name] = size
        return size


def library_versions() -> str:
    """Versions of the driver's interface and of cuBLASLt, as "driver 13000, cublasLt 130100"."""
    import cupy
    from nvmath.bindings import cublasLt

    return f"driver {cupy.cuda.runtime.driverGetVersion()}, cublasLt {cublasLt.get_version()}"


class _Function:
    """A loaded kernel with the memory through which its parameters pass; the driver copies them at a launch."""

    def __init__(self, handle: Any, kernel: Kernel) -> None:
        self.handle = handle
        self.shared = DEFAULT_SHARED
        """Dynamic shared memory that it may use so far."""
        self.slots = (ctypes.c_uint64 * (kernel.size // 8))()
        base = ctypes.addressof(self.slots)
        self._pointers = (ctypes.c_void_p * len(kernel.offsets))(*(base + at for at in kernel.offsets))
        self.pointers_at = ctypes.addressof(self._pointers)
