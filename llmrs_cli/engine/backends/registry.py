"""From a device name to a backend, and why one cannot be used here. Imports a backend only to open it.

Devices: `auto` (the first usable of cuda, cpu), `cpu`, `reference`, `cuda` or `cuda:N`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from llmrs_cli.engine.backends.base import Backend
from llmrs_cli.errors import UsageError

CLASSES = {"cuda": "CudaBackend", "cpu": "CpuBackend", "reference": "ReferenceBackend"}
"""Class of each backend, in the module of its name; the order in which `auto` prefers them."""
GPU_SIGNS = Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg")
"""What a visible GPU leaves in the file system (the last one under WSL)."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """One backend, and whether this machine can run it."""

    name: str
    reason: str | None = None
    """Why it cannot be used, in one sentence; None if it can."""
    hint: str | None = None
    """What would make it usable, if anything."""

    @property
    def usable(self) -> bool:
        return self.reason is None


def available() -> list[BackendInfo]:
    """Every backend, in the order in which `auto` prefers them."""
    return [probe(name) for name in CLASSES]


def open_backend(device: str = "auto", *, deterministic: bool = False) -> Backend:
    """Open the backend of `device`; UsageError if there is no such device or it cannot be used here.

    `deterministic`: bits that do not depend on what is computed beside them, which a GPU offers.
    """
    name, index = parse_device(device)
    if name == "auto":
        name = next(info.name for info in available() if info.usable)
    info = probe(name, index)
    if info.reason is not None:
        raise UsageError(f"The device {device!r} cannot be used: {info.reason}", hint=info.hint)
    if deterministic and name != "cuda":
        raise UsageError(
            f"The device {name} cannot be deterministic: its libraries order their sums as they like.",
            hint="Use --device cuda, or leave --deterministic out.",
        )
    backend = getattr(import_module(_module(name)), CLASSES[name])
    opened: Backend = backend(index, deterministic) if name == "cuda" else backend()
    return opened


def notice_of(device: str) -> str | None:
    """What the user should know about running on `device`, in one sentence; None if all is well."""
    if parse_device(device)[0] != "cpu":
        return None
    from llmrs_cli.kernels.simd.program import default_cache, private_folder

    return private_folder(default_cache())[1]


def parse_device(device: str) -> tuple[str, int]:
    """'cuda:1' → ('cuda', 1); the number is 0 where none is given."""
    name, colon, number = device.partition(":")
    if name not in ("auto", *CLASSES) or (colon and not (name == "cuda" and number.isdecimal())):
        raise UsageError(f"A device is auto, cpu, cuda, cuda:N or reference, not {device[:40]!r}.")
    return name, int(number or 0)


def probe(name: str, index: int = 0) -> BackendInfo:
    """Whether backend `name` can run here; `index` counts GPUs."""
    return probe_cuda(index) if name == "cuda" else BackendInfo(name)


def probe_cuda(index: int = 0, signs: Sequence[Path] = GPU_SIGNS) -> BackendInfo:
    """Whether GPU `index` can be used; looks before it imports CuPy, which takes a while."""
    if find_spec(_module("cuda")) is None:
        return BackendInfo("cuda", "this version of llmrs has no CUDA backend.")
    if not any(sign.exists() for sign in signs):
        return BackendInfo("cuda", "no NVIDIA GPU is visible.")
    if find_spec("cupy") is None:
        from llmrs_cli.extras import install

        hint = f"Install them: {install('cuda12')}."
        return BackendInfo("cuda", "there is a GPU, but the CUDA packages are not installed.", hint)
    try:
        import cupy

        count: int = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy's own errors cannot be named before it is imported
        return BackendInfo("cuda", f"CuPy does not find the GPU ({type(error).__name__}).")
    if index >= count:
        return BackendInfo("cuda", f"there is no GPU {index}; GPUs are counted from 0 and there are {count}.")
    return BackendInfo("cuda")


def _module(name: str) -> str:
    return f"llmrs_cli.engine.backends.{name}"
