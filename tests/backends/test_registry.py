"""Device names become backends, and a backend that cannot be used says why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llmrs_cli.engine.backends import registry
from llmrs_cli.engine.backends.registry import available, open_backend, parse_device, probe_cuda
from llmrs_cli.errors import ExitCode, UsageError
from llmrs_cli.extras import install


@pytest.mark.parametrize(
    ("device", "parsed"),
    [("auto", ("auto", 0)), ("cpu", ("cpu", 0)), ("cuda", ("cuda", 0)), ("cuda:3", ("cuda", 3))],
)
def test_device_names_are_parsed(device: str, parsed: tuple[str, int]) -> None:
    assert parse_device(device) == parsed


@pytest.mark.parametrize(
    "device", ["", "gpu", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "auto:1"]
)
def test_an_unknown_device_is_a_usage_error_that_lists_the_known_ones(device: str) -> None:
    with pytest.raises(UsageError, match="auto, cpu, cuda, cuda:N or reference, not") as caught:
        open_backend(device)
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_long_device_name_is_cut_in_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        open_backend("x" * 1000)
    assert len(str(caught.value)) < 120


def test_the_reference_opens_everywhere() -> None:
    backend = open_backend("reference")
    assert backend.name == "reference"
    assert backend.free_bytes() > 0


def test_every_backend_is_listed_with_a_reason_if_it_cannot_be_used() -> None:
    listed = available()
    assert [info.name for info in listed] == ["cuda", "cpu", "reference"]
    assert all(info.usable or (info.reason or "").endswith(".") for info in listed)


def test_auto_opens_the_first_usable_one() -> None:
    first = next(info for info in available() if info.usable)
    backend = open_backend("auto")
    assert backend.name == first.name
    backend.close()


def without(missing: str) -> Callable[[str], object]:
    """A `find_spec` that finds every module but one."""
    return lambda name: None if name == missing else object()


def test_a_machine_without_a_gpu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", without("nothing"))
    info = probe_cuda(signs=[tmp_path / "none"])
    assert not info.usable
    assert info.reason == "no NVIDIA GPU is visible."
    assert info.hint is None


def test_a_gpu_without_the_cuda_packages_gives_the_line_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", without("cupy"))
    info = probe_cuda(signs=[tmp_path])
    assert info.reason == "there is a GPU, but the CUDA packages are not installed."
    assert info.hint == f"Install them: {install('cuda12')}."


def test_an_unusable_device_is_refused_with_its_reason_and_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = registry.BackendInfo("cuda", "the reason.", "The hint.")
    monkeypatch.setattr(registry, "probe", lambda name, index=0: missing)
    with pytest.raises(UsageError) as caught:
        open_backend("cuda:1")
    assert str(caught.value) == "The device 'cuda:1' cannot be used: the reason. The hint."


def test_listing_backends_imports_none_of_them() -> None:
    code = (
        "import sys; from llmrs_cli.engine.backends.registry import available; available();"
        "loaded = [m for m in sys.modules if m.rsplit('.')[-1] in ('reference', 'cpu', 'cuda', 'numba')];"
        "sys.exit(f'{loaded}' if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_only_a_gpu_is_deterministic(device: str) -> None:
    with pytest.raises(UsageError, match=f"The device {device} cannot be deterministic"):
        open_backend(device, deterministic=True)
