"""`llmrs doctor --build-kernels` and `--tuning`: compiles ahead what a GPU would compile on first use, shows what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import UsageError
from llmrs_cli.extras import install


def build_kernels(arch: str | None, terminal: Terminal) -> None:
    """Compile every kernel for `arch`, or for the GPU that is here, into the cache; says how many.

    Raises UsageError without a compiler, without a GPU where no architecture is named, or where the cache cannot be used.
    """
    from llmrs_cli.kernels.catalog import all_units
    from llmrs_cli.kernels.loader import CubinCache, Loader, default_cache

    if not _has("cuda.bindings.nvrtc"):
        raise UsageError(
            "The CUDA compiler is not installed.",
            hint=f"Install it: {install('cuda13')}.",
        )
    arch = arch or _arch_here()
    cache = CubinCache(default_cache())
    if cache.notice is not None:
        raise UsageError(cache.notice, hint="Set LLMRS_CACHE_DIR to a folder of your own.")
    loader, units = Loader(arch, cache), all_units(arch)
    missing = loader.missing(units)
    with terminal.working(f"Building {len(missing)} kernels for {arch}") as bar:
        loader.build(missing, bar.update)
    terminal.data(f"{arch}: {len(missing)} built, {len(units) - len(missing)} were there, in {cache.folder}")


def tuning_lines() -> Iterator[str]:
    """Every choice that was made by measuring on the GPUs of this cache."""
    from llmrs_cli.kernels.tune import default_folder, stored

    found = list(stored(default_folder()))
    return iter(found or ["Nothing has been measured here yet: a GPU chooses as it meets new sizes."])


def _arch_here() -> str:
    """Architecture of GPU 0."""
    from llmrs_cli.engine.backends.registry import probe_cuda
    from llmrs_cli.kernels.loader import ARCHITECTURES, arch_for

    info = probe_cuda()
    if info.reason is not None:
        raise UsageError(
            f"There is no GPU to build for: {info.reason}",
            hint=f"Name one with --arch: {', '.join(ARCHITECTURES)}.",
        )
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return arch_for(properties["major"], properties["minor"])


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
