"""The GPU that these tests run on; without one they are skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrs_cli.engine.backends.registry import probe_cuda
from llmrs_cli.kernels.device import CudaDevice
from llmrs_cli.kernels.loader import CubinCache


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder; skip it where there is no GPU."""
    reason = probe_cuda().reason
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> CudaDevice:
    """GPU 0 with a fresh kernel cache."""
    return CudaDevice(0, CubinCache(tmp_path_factory.mktemp("kernels")))


@pytest.fixture
def hopper(device: CudaDevice) -> CudaDevice:
    """The GPU where it has a copy engine and `wgmma`."""
    if device.loader.arch != "sm_90a":
        pytest.skip(reason="this kernel is for Hopper")
    return device
