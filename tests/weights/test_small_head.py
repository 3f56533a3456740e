"""A head in 8 bits: within half a step of its source, close in logits, and a view that changes no other weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from llmrs_cli.engine.backends.reference import ReferenceBackend
from llmrs_cli.engine.forced import load
from llmrs_cli.engine.model.names import EMBEDDING, HEAD
from llmrs_cli.engine.verify import forced_logits
from llmrs_cli.engine.weights.checkpoint import open_checkpoint
from llmrs_cli.engine.weights.packed import Dense, Packed8
from llmrs_cli.engine.weights.small_head import open_model, round_to_8_bits, with_small_head
from llmrs_cli.errors import ModelError
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel, write_tiny

IDS = (5, 9, 200, 31, 7, 100)


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 100),
    group=st.sampled_from([1, 8, 32]),
    exponent=st.integers(-3, 3),
    seed=st.integers(0, 99),
)
def test_every_value_is_within_half_a_step(
    rows: int, columns: int, group: int, exponent: int, seed: int
) -> None:
    values = np.random.default_rng(seed).standard_normal((rows, columns)) * 10.0**exponent
    found = round_to_8_bits(Dense(values.astype(np.float32)), group)
    assert found.codes.shape == (rows, columns) and np.abs(found.codes.astype(int)).max() <= 127
    steps = np.repeat(found.scales.astype(np.float64), group, axis=1)[:, :columns]
    assert (np.abs(found.dequantise() - values) <= 0.501 * steps).all()


def test_zeros_stay_zeros() -> None:
    assert not round_to_8_bits(Dense(np.zeros((2, 40), np.float32)), 32).dequantise().any()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_values_that_8_bits_cannot_hold_are_refused(value: float) -> None:
    with pytest.raises(ModelError, match="8 bits cannot"):
        round_to_8_bits(Dense(np.full((1, 4), value, np.float32)), 4)


@pytest.mark.parametrize("tied", [False, True])
def test_logits_move_by_half_a_percent_and_nothing_else_does(tmp_path: Path, tied: bool) -> None:
    folder = write_tiny(tmp_path / "m", TinyModel(tied=tied))
    plain, small = open_checkpoint(folder), open_model(folder, small_head=True)
    right, ours = (forced_logits(load(c, ReferenceBackend()), IDS, 1) for c in (plain, small))
    assert 1e-4 < np.linalg.norm(ours - right) / np.linalg.norm(right) < 0.008
    assert isinstance(small.parameters[HEAD].read(), Packed8)
    assert small.parameters[HEAD].form == "8 bits, group 32"
    assert isinstance(small.parameters[EMBEDDING].read(), Dense)
    assert small.identity != plain.identity
    assert small.bytes_a_step < plain.bytes_a_step


def test_a_head_that_is_quantised_already_stays_as_it_is(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", TinyModel("llama", tied=True))
    checkpoint = open_checkpoint(path)
    object.__setattr__(checkpoint.parameters[EMBEDDING], "form", "Q8_0")
    found = with_small_head(checkpoint)
    assert found.parameters == checkpoint.parameters
    assert found.notes == ("The head is quantised already, Q8_0, so it stays as it is.",)


def test_a_model_without_a_head_is_named(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "m")
    tensors: dict[str, Any] = dict(load_file(folder / "model.safetensors"))
    del tensors[HEAD]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"no 'lm_head\.weight'"):
        open_model(folder, small_head=True)
