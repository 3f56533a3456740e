"""The comparison with the reference on a GPU: a wrong weight is found where it is, massive activations are counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import Loaded
from llmrs_cli.engine.verify import BOUNDS, compare, find_culprit
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.load import load_model
from tests.engine.test_saturation import IDS, counts, massive
from tests.helpers.tiny_model import TinyModel, write_tiny

BOUND = BOUNDS["cuda", "float16"]
Pair = tuple[Loaded, Loaded]


@pytest.fixture(params=[False, True], ids=["dense", "4 bit"])
def pair(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """The model on the GPU and on the reference."""
    from llmrs_cli.engine.backends.cuda import CudaBackend

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "xdg"))
    checkpoint = open_checkpoint(write_tiny(tmp_path, TinyModel(awq=request.param)))
    gpu, host = CudaBackend(0), ReferenceBackend()
    yield (
        Loaded(gpu, load_model(checkpoint, gpu), checkpoint.spec),
        Loaded(host, load_model(checkpoint, host), checkpoint.spec),
    )
    gpu.close()


def test_no_op_strays(pair: Pair) -> None:
    assert find_culprit(*pair, IDS, 4 * BOUND.error) is None


@pytest.mark.parametrize("count", [2, len(IDS)])
def test_the_op_that_strays_is_found(pair: Pair, count: int) -> None:
    gpu, host = pair
    assert find_culprit(massive(gpu, 0, mlp_norm=1.5), host, IDS[:count], 0.1) == "layer 0 norm_gate_up"


def test_a_gate_that_bursts_is_counted_and_stays_finite(pair: Pair) -> None:
    gpu, host = pair
    assert counts(gpu) == {}
    bursting = massive(gpu, 1, mlp_norm=1e4)
    assert "layer 1 norm_gate_up" in counts(bursting)
    verdict = compare(bursting, host, IDS[:1], IDS[1:], BOUND)
    assert verdict.saturated == counts(bursting)
    assert verdict.error < float("inf")  # a NaN is not either
