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
from llmrs_cli.kernels.launch import Shape
from llmrs_cli.kernels.loader import CubinCache, Loader, Unit, arch_for

DEFAULT_SHARED = 48 * 1024
"""Dynamic shared memory that needs no opt-in."""


class CudaDevice:
    """One GPU and its loaded kernels. Not shared between threads."""

    def __init__(self, ordinal: int, cache: CubinCache) -> None:
        import cupy
        from cuda.bindings import driver

        self._driver = driver
        self._cupy = cupy
        self.ordinal = ordinal
        cupy.cuda.Device(ordinal).use()
        properties = cupy.cuda.runtime.getDeviceProperties(ordinal)
        self.multiprocessors: int = properties["multiProcessorCount"]
        self.name: str = properties["name"].decode()
        self.shared_limit: int = properties["sharedMemPerBlockOptin"]
        self.loader = Loader(arch_for(properties["major"], properties["minor"]), cache)
        self._early = properties["major"] >= 9
        self._modules: dict[Unit, Any] = {}
        self._functions: dict[tuple[Unit, str], tuple[int, list[int]]] = {}
        self._config = driver.CUlaunchConfig()
        self._attribute = driver.CUlaunchAttribute()
        self._attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        self._attribute.value.programmaticStreamSerializationAllowed = 1

    def build(self, units: Sequence[Unit], progress: Callable[[int, int], None] | None = None) -> None:
        """Compile what is missing in parallel and load everything, so that no later launch compiles."""
        self.loader.build(units, progress)
        for unit in units:
            self._module(unit)

    def function(self, unit: Unit, name: str) -> tuple[int, list[int]]:
        """A driver handle, and the dynamic shared memory that it may use so far (in a one-item list)."""
        known = self._functions.get((unit, name))
        if known is None:
            handle = self._module(unit).get_function(name)
            known = (handle.ptr, [DEFAULT_SHARED])
            self._functions[unit, name] = known
        return known

    def _module(self, unit: Unit) -> Any:
        if unit not in self._modules:
            module = self._cupy.cuda.function.Module()
            module.load(self.loader.load(unit))
            self._modules[unit] = module
        return self._modules[unit]

    def launch(self, function: tuple[int, list[int]], shape: Shape, slots: Sequence[bytes]) -> None:
        """Enqueue on CuPy's current stream; raises EngineFault with the driver's word for a failure."""
        handle, allowed = function
        if shape.shared > allowed[0]:
            self._allow_shared(handle, shape.shared)
            allowed[0] = shape.shared
        config = self._config
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes = shape.shared
        config.hStream = self._cupy.cuda.get_current_stream().ptr
        config.attrs = [self._attribute] if self._early else []
        config.numAttrs = 1 if self._early else 0
        pointers, keep = _parameters(slots)
        (status,) = self._driver.cuLaunchKernelEx(config, handle, ctypes.addressof(pointers), 0)
        del keep
        if int(status):
            raise EngineFault(f"A kernel could not be launched ({status.name}).")

    def synchronise(self) -> None:
        """Wait for everything enqueued on this GPU, on any stream."""
        self._cupy.cuda.Device(self.ordinal).synchronize()

    def _allow_shared(self, handle: int, size: int) -> None:
        attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = self._driver.cuFuncSetAttribute(handle, attribute, size)
        if int(status):
            raise EngineFault(f"This GPU cannot give a kernel {size} bytes of shared memory ({status.name}).")


def _parameters(slots: Sequence[bytes]) -> tuple[Any, Any]:
    """The array of pointers that the driver reads, and the memory that it points into."""
    memory = (ctypes.c_uint64 * len(slots))(*(int.from_bytes(slot, "little") for slot in slots))
    base = ctypes.addressof(memory)
    return (ctypes.c_void_p * len(slots))(*(base + 8 * i for i in range(len(slots)))), memory
