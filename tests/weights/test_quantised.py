"""AWQ, GPTQ and compressed-tensors layers become the numbers that their makers meant, or are refused.

Longer than most files: it is a list of small cases, format by format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from llmrs_cli.engine.weights.awq import awq_rows_weight, awq_weight
from llmrs_cli.engine.weights.compressed import compressed_weight
from llmrs_cli.engine.weights.gptq import gptq_weight, in_groups
from llmrs_cli.engine.weights.packed import Packed4, Permuted4
from llmrs_cli.engine.weights.parameters import Parameter
from llmrs_cli.engine.weights.quantisation import Quantisation, read_quantisation
from llmrs_cli.engine.weights.quantised import build_parameters
from llmrs_cli.engine.weights.store import read_file
from llmrs_cli.engine.weights.words import AWQ_ORDER
from llmrs_cli.errors import ModelError

LAYER = "model.layers.0.mlp.up_proj"
Ints = NDArray[np.int64]


def words(values: Ints) -> NDArray[np.int32]:
    """(…, n, 8) values of 4 bits → (…, n) words, the first value in the lowest bits."""
    shifts = np.arange(0, 32, 4, dtype=np.uint64)
    whole: NDArray[np.uint64] = (values.astype(np.uint64) << shifts).sum(-1, dtype=np.uint64)
    return whole.astype(np.uint32).view(np.int32)


def awq_words(values: Ints) -> NDArray[np.int32]:
    """(rows, N) codes as AutoAWQ packs them: its order is a table of which output each nibble holds."""
    eights = values.reshape(values.shape[0], -1, 8)
    return words(eights[..., [0, 2, 4, 6, 1, 3, 5, 7]])


def spread(values: NDArray[Any], group: int, columns: int) -> NDArray[np.float64]:
    """(N, groups) → (N, K)."""
    return np.repeat(values.astype(np.float64), group, axis=1)[:, :columns]


def stored(
    folder: Path, tensors: dict[str, NDArray[Any]], quantisation: Quantisation | None
) -> dict[str, Parameter]:
    save_file(
        {name: np.ascontiguousarray(values) for name, values in tensors.items()}, folder / "x.safetensors"
    )
    return build_parameters(read_file(folder / "x.safetensors"), quantisation)


def awq_tensors(k: int = 64, n: int = 16, group: int = 32) -> dict[str, NDArray[Any]]:
    groups = -(-k // group)
    return {
        f"{LAYER}.qweight": np.full((k, n // 8), 0x75316420, np.int32),
        f"{LAYER}.qzeros": np.zeros((groups, n // 8), np.int32),
        f"{LAYER}.scales": np.full((groups, n), 0.5, np.float16),
    }


# -- AWQ ------------------------------------------------------------------------------------------------


def test_awq_words_hold_even_outputs_first() -> None:
    """0x75316420 is 0, 1, … 7 in the order of AWQ; read plainly it would be 0, 2, 4, 6, 1, 3, 5, 7."""
    qweight = np.full((32, 1), 1966171168, np.int32)
    scales = np.full((1, 8), 0.5, np.float16)
    ones = np.ones(32, np.float32)
    plain = awq_weight(qweight, np.zeros((1, 1), np.int32), scales, 32)
    assert (plain.dequantise() @ ones).tolist() == [0, 16, 32, 48, 64, 80, 96, 112]
    shifted = awq_weight(qweight, np.full((1, 1), -2004318072, np.int32), scales, 32)
    assert (shifted.dequantise() @ ones).tolist() == [-128, -112, -96, -80, -64, -48, -32, -16]


@given(
    k=st.integers(1, 70),
    eights=st.integers(1, 20),
    group=st.integers(1, 80),
    seed=st.integers(0, 2**32),
)
def test_any_awq_layer_is_code_less_zero_times_scale(k: int, eights: int, group: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, groups = 8 * eights, -(-k // group)
    codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (groups, n))
    scales = rng.uniform(0.01, 1, (groups, n)).astype(np.float16)
    found = awq_weight(awq_words(codes), awq_words(zeros), scales, group).canonical()
    np.testing.assert_array_equal(found.unpack(), codes.T)
    assert found.zeros is not None
    np.testing.assert_array_equal(found.zeros, zeros.T)
    expected = (codes.T - spread(zeros.T, group, k)) * spread(scales.T, group, k)
    np.testing.assert_allclose(found.dequantise(), expected, rtol=1e-6)


@pytest.mark.parametrize("n", [64, 192, 896, 128, 4864])
def test_outputs_that_are_no_multiple_of_128_keep_their_last_columns(n: int) -> None:
    codes = np.random.default_rng(n).integers(0, 16, (10, n))
    found = awq_weight(awq_words(codes), np.zeros((1, n // 8), np.int32), np.ones((1, n), np.float16), 10)
    np.testing.assert_array_equal(found.dequantise(), codes.T)


def test_the_order_is_a_permutation_of_eight_outputs() -> None:
    assert sorted(AWQ_ORDER) == list(range(8))


def test_a_group_size_of_minus_one_is_one_group_of_all_inputs(tmp_path: Path) -> None:
    tensors = awq_tensors(k=96, group=96)
    found = stored(tmp_path, tensors, Quantisation("awq", -1))[f"{LAYER}.weight"]
    assert found.shape == (16, 96)
    assert found.read().dequantise()[:8, 95].tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]


def test_a_layer_is_quantised_exactly_when_its_tensors_are(tmp_path: Path) -> None:
    plain = {"model.layers.0.self_attn.q_proj.weight": np.ones((4, 4), np.float16)}
    bias = {f"{LAYER}.bias": np.full(16, 5, np.float16)}
    found = stored(tmp_path, awq_tensors() | plain | bias, Quantisation("awq", 32))
    assert {name: p.form for name, p in found.items()} == {
        f"{LAYER}.weight": "4-bit AWQ, group 32",
        f"{LAYER}.bias": "float16",
        "model.layers.0.self_attn.q_proj.weight": "float16",
    }
    assert found[f"{LAYER}.weight"].is_quantised and not found[f"{LAYER}.bias"].is_quantised
    assert found[f"{LAYER}.weight"].nbytes == sum(v.nbytes for v in awq_tensors().values())


@pytest.mark.parametrize("skipped", [(), ("lm_head",), ("self_attn",), ("visual",)])
def test_lists_of_plain_layers_that_agree_with_the_tensors_are_fine(
    tmp_path: Path, skipped: tuple[str, ...]
) -> None:
    assert len(stored(tmp_path, awq_tensors(), Quantisation("awq", 32, skipped))) == 1


def test_a_list_that_contradicts_the_tensors_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"lists 'mlp', but '{LAYER}' is quantised"):
        stored(tmp_path, awq_tensors(), Quantisation("awq", 32, ("lm_head", "mlp")))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_scales_keep_their_precision(tmp_path: Path, dtype: Any) -> None:
    tensors = awq_tensors()
    tensors[f"{LAYER}.scales"] = tensors[f"{LAYER}.scales"].astype(dtype)
    weight = stored(tmp_path, tensors, Quantisation("awq", 32))[f"{LAYER}.weight"].read()
    assert weight.scales.dtype == dtype  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"qzeros": None}, "has no qzeros"),
        ({"scales": None}, "has no scales"),
        ({"scales": np.ones((3, 16), np.float16)}, r"shape \(3, 16\); \(2, 16\) would fit"),
        ({"qzeros": np.ones((2, 3), np.int32)}, r"shape \(2, 3\); \(2, 2\) would fit"),
        ({"qweight": np.ones((64, 2), np.int64)}, "dtype I64, not I32"),
        ({"qweight": np.ones((64,), np.int32)}, "no matrix"),
        ({"qweight": np.ones((0, 2), np.int32)}, "no matrix"),
        ({"scales": np.ones((2, 16), np.int32)}, "dtype I32, not F16"),
    ],
)
def test_pieces_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Any], cause: str) -> None:
    tensors = awq_tensors() | {f"{LAYER}.{piece}": values for piece, values in changes.items()}
    with pytest.raises(ModelError, match=cause):
        stored(tmp_path, {k: v for k, v in tensors.items() if v is not None}, Quantisation("awq", 32))


def test_quantised_tensors_without_a_configuration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="names no quantisation"):
        stored(tmp_path, awq_tensors(), None)


def test_a_dtype_that_is_no_float_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'a' has dtype F64"):
        stored(tmp_path, {"a": np.ones(2, np.float64)}, None)


@given(eights=st.integers(1, 12), n=st.integers(1, 20), group=st.sampled_from([8, 24, 32, 64, 200]))
def test_an_awq_layer_stored_by_rows_is_code_less_zero_times_scale(eights: int, n: int, group: int) -> None:
    rng = np.random.default_rng(eights)
    k = 8 * eights
    groups = -(-k // group)
    padded = 8 * (-(-groups // 8) + 1)
    codes, zeros = rng.integers(0, 16, (n, k)), rng.integers(0, 16, (n, padded))
    scales = rng.uniform(0.01, 1, (n, padded)).astype(np.float16)
    found = awq_rows_weight(
        words(codes.reshape(n, -1, 8)), words(zeros.reshape(n, -1, 8)), scales, min(group, k)
    )
    np.testing.assert_array_equal(found.unpack(), codes)
    expected = (codes - spread(zeros[:, :groups], group, k)) * spread(scales[:, :groups], group, k)
    np.testing.assert_allclose(found.dequantise(), expected, rtol=1e-6)


BY_ROWS = Quantisation("awq", 32, by_rows=True)


def awq_rows_tensors(**changes: Any) -> dict[str, NDArray[Any]]:
    """K = 64, N = 6, G = 32; rows of zeros and scales as AutoAWQ pads them for this group size."""
    pieces: dict[str, NDArray[Any]] = {
        "qweight": np.full((6, 8), 0x76543210, np.int32),
        "qzeros": np.full((6, 4), 0x11, np.int32),
        "scales": np.full((6, 32), 2, np.float16),
    }
    return {f"{LAYER}.{piece}": values for piece, values in (pieces | changes).items()}


def test_an_awq_layer_stored_by_rows_is_read(tmp_path: Path) -> None:
    found = stored(tmp_path, awq_rows_tensors(), BY_ROWS)[f"{LAYER}.weight"]
    assert (found.shape, found.form) == ((6, 64), "4-bit AWQ, group 32")
    assert found.read().dequantise()[5, 56:].tolist() == [-2, 0, 2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"qzeros": np.zeros((5, 4), np.int32)}, r"shape \(5, 4\), which does not fit"),
        ({"qzeros": np.zeros((6, 0), np.int32)}, "no matrix"),
        ({"scales": np.ones((6, 31), np.float16)}, r"shape \(6, 31\); \(6, 32\) would fit"),
    ],
)
def test_rows_of_zeros_and_scales_that_do_not_fit_are_named(
    tmp_path: Path, changes: dict[str, Any], cause: str
) -> None:
    with pytest.raises(ModelError, match=cause):
        stored(tmp_path, awq_rows_tensors(**changes), BY_ROWS)


# -- GPTQ -----------------------------------------------------------------------------------------------


def test_gptq_words_hold_eight_inputs_in_plain_order() -> None:
    qweight = np.full((1, 8), 0x76543210, np.int32)
    scales = np.ones((1, 8), np.float16)
    zeros = np.zeros((1, 1), np.int32)
    found = gptq_weight(qweight, zeros, scales, 8, stored_less_one=False, name="x")
    assert (found.dequantise() @ np.arange(1, 9, dtype=np.float32)).tolist() == [168.0] * 8


@pytest.mark.parametrize(("less_one", "zero"), [(True, 7), (False, 8)])
def test_both_gptq_formats_give_the_same_weight(less_one: bool, zero: int) -> None:
    """Code 8 with an effective zero of 8 is 0; the first format stores 7."""
    zeros = words(np.full((1, 1, 8), zero))
    qweight = words(np.full((1, 8, 8), 8))
    found = gptq_weight(qweight, zeros, np.ones((1, 8), np.float16), 8, stored_less_one=less_one, name="x")
    np.testing.assert_array_equal(found.dequantise(), 0.0)


def test_an_ambiguous_zero_of_the_first_format_is_refused() -> None:
    zeros = words(np.full((1, 1, 8), 15))
    args = (words(np.zeros((1, 8, 8), np.int64)), zeros, np.ones((1, 8), np.float16), 8)
    with pytest.raises(ModelError, match="zero point of 15"):
        gptq_weight(*args, stored_less_one=True, name="x")
    assert gptq_weight(*args, stored_less_one=False, name="x").plain_zeros().max() == 15


@given(
    eights=st.integers(1, 9),
    outs=st.integers(1, 5),
    group=st.sampled_from([8, 16, 24, 128]),
    seed=st.integers(0, 99),
)
def test_any_gptq_layer_is_code_less_zero_times_scale(eights: int, outs: int, group: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, n = 8 * eights, 8 * outs
    groups = -(-k // group)
    codes, zeros = rng.integers(0, 16, (n, k)), rng.integers(1, 16, (n, groups))
    scales = rng.uniform(0.01, 1, (groups, n)).astype(np.float16)
    qweight = words(codes.reshape(n, eights, 8)).T
    qzeros = words((zeros - 1).T.reshape(groups, outs, 8))
    found = gptq_weight(qweight, qzeros, scales, group, stored_less_one=True, name="x").canonical()
    np.testing.assert_array_equal(found.unpack(), codes)
    expected = (codes - spread(zeros, group, k)) * spread(scales.T, group, k)
    np.testing.assert_allclose(found.dequantise(), expected, rtol=1e-6)


def gptq_tensors(k: int = 32, n: int = 8, group: int = 16) -> dict[str, NDArray[Any]]:
    return {
        f"{LAYER}.qweight": np.full((k // 8, n), 0x11111111, np.int32),
        f"{LAYER}.qzeros": np.zeros((k // group, n // 8), np.int32),
        f"{LAYER}.scales": np.ones((k // group, n), np.float16),
        f"{LAYER}.g_idx": np.arange(k, dtype=np.int32) // group,
    }


def test_a_gptq_layer_in_natural_order_is_read(tmp_path: Path) -> None:
    found = stored(tmp_path, gptq_tensors(), Quantisation("gptq", 16, zeros_less_one=False))
    np.testing.assert_array_equal(found[f"{LAYER}.weight"].read().dequantise(), np.ones((8, 32)))


@given(eights=st.integers(1, 9), group=st.sampled_from([3, 8, 16, 128]), seed=st.integers(0, 99))
def test_columns_in_activation_order_are_sorted_by_group(eights: int, group: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, n = 8 * eights, 8
    groups = -(-k // group)
    codes, zeros = rng.integers(0, 16, (n, k)), rng.integers(1, 16, (n, groups))
    scales = rng.uniform(0.01, 1, (groups, n)).astype(np.float16)
    g_idx = rng.permutation(np.arange(k) // group)
    qzeros = words((zeros - 1).T.reshape(groups, -1, 8))
    qweight = words(codes.reshape(n, -1, 8)).T
    weight = gptq_weight(qweight, qzeros, scales, group, stored_less_one=True, name="x")
    found = in_groups(weight, g_idx, "x")
    expected = (codes - zeros[:, g_idx]) * scales.T[:, g_idx].astype(np.float64)
    np.testing.assert_allclose(found.dequantise(), expected, rtol=1e-6)


def test_an_order_that_is_natural_or_not_given_changes_nothing(tmp_path: Path) -> None:
    natural = stored(tmp_path, gptq_tensors(), Quantisation("gptq", 16))[f"{LAYER}.weight"].read()
    tensors = gptq_tensors() | {f"{LAYER}.g_idx": np.full(32, -1, np.int32)}
    unused = stored(tmp_path, tensors, Quantisation("gptq", 16))[f"{LAYER}.weight"].read()
    assert isinstance(natural, Packed4) and isinstance(unused, Packed4)


def test_groups_of_unequal_size_are_refused(tmp_path: Path) -> None:
    tensors = gptq_tensors() | {f"{LAYER}.g_idx": np.zeros(32, np.int32)}
    found = stored(tmp_path, tensors, Quantisation("gptq", 16))
    with pytest.raises(ModelError, match="groups do not have 16 inputs each"):
        found[f"{LAYER}.weight"].read()


def test_activation_order_without_the_groups_of_the_inputs_is_refused(tmp_path: Path) -> None:
    tensors = gptq_tensors()
    del tensors[f"{LAYER}.g_idx"]
    assert stored(tmp_path, tensors, Quantisation("gptq", 16))
    with pytest.raises(ModelError, match="has no g_idx"):
        stored(tmp_path, tensors, Quantisation("gptq", 16, activation_order=True))


def test_compressed_layers_may_give_an_order_too(tmp_path: Path) -> None:
    order = np.arange(32, dtype=np.int32)[::-1] // 16
    tensors = compressed_tensors(weight_g_idx=np.ascontiguousarray(order))
    tensors[f"{LAYER}.weight_scale"][:, 1] = 3
    found = stored(tmp_path, tensors, Quantisation("compressed-tensors", 16))[f"{LAYER}.weight"].read()
    assert isinstance(found, Permuted4)
    assert found.dequantise()[0].tolist() == [3.0] * 16 + [2.0] * 16


def test_layers_in_activation_order_say_that_a_gpu_widens_them(tmp_path: Path) -> None:
    plain, ordered = (
        stored(tmp_path, gptq_tensors(), Quantisation("gptq", 16, activation_order=order))[f"{LAYER}.weight"]
        for order in (False, True)
    )
    assert plain.form == "4-bit GPTQ, group 16"
    assert ordered.form == "GPTQ in activation order, 4-bit (16-bit on a GPU), group 16"
    tensors = compressed_tensors(weight_g_idx=np.arange(32, dtype=np.int32) // 16)
    compressed = stored(tmp_path, tensors, Quantisation("compressed-tensors", 16))[f"{LAYER}.weight"]
    assert compressed.form == "compressed-tensors in activation order, 4-bit (16-bit on a GPU), group 16"
    assert ordered.is_quantised and compressed.is_quantised


# -- compressed-tensors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("n", "k", "group"), [(8, 32, 16), (3, 20, 8), (9, 7, 7), (16, 64, 64)])
def test_compressed_layers_are_signed_codes_less_signed_zeros(
    symmetric: bool, n: int, k: int, group: int
) -> None:
    rng = np.random.default_rng(n)
    groups = -(-k // group)
    codes, zeros = rng.integers(-8, 8, (n, k)), rng.integers(-8, 8, (n, groups)) * (not symmetric)
    scales = rng.uniform(0.01, 1, (n, groups)).astype(np.float16)
    padded = np.zeros((n, -(-k // 8) * 8), np.int64)
    padded[:, :k] = codes + 8
    stored_zeros = np.zeros((-(-n // 8) * 8, groups), np.int64)
    stored_zeros[:n] = zeros + 8
    packed_zeros = words(stored_zeros.T.reshape(groups, -1, 8)).T
    found = compressed_weight(
        words(padded.reshape(n, -1, 8)), scales, None if symmetric else packed_zeros, group, k
    )
    expected = (codes - spread(zeros, group, k)) * spread(scales, group, k)
    np.testing.assert_allclose(found.dequantise(), expected, rtol=1e-6)


def compressed_tensors(**changes: Any) -> dict[str, NDArray[Any]]:
    pieces: dict[str, NDArray[Any]] = {
        "weight_packed": np.full((8, 4), 0x11111111 * 9, np.uint32).view(np.int32),
        "weight_scale": np.full((8, 2), 2, np.float32),
        "weight_shape": np.array([8, 32], np.int64),
    }
    return {f"{LAYER}.{piece}": values for piece, values in (pieces | changes).items()}


def test_a_compressed_layer_is_read(tmp_path: Path) -> None:
    found = stored(tmp_path, compressed_tensors(), Quantisation("compressed-tensors", 16))
    np.testing.assert_array_equal(found[f"{LAYER}.weight"].read().dequantise(), np.full((8, 32), 2.0))


@pytest.mark.parametrize("shape", [[8, 40], [9, 32], [8, 0]])
def test_a_stored_shape_that_is_not_the_data_s_is_refused(tmp_path: Path, shape: list[int]) -> None:
    with pytest.raises(ModelError, match="says its shape is"):
        stored(
            tmp_path,
            compressed_tensors(weight_shape=np.array(shape, np.int64)),
            Quantisation("compressed-tensors", 16),
        )


# -- configuration --------------------------------------------------------------------------------------


def read(**section: Any) -> Quantisation | None:
    return read_quantisation({"quantization_config": section})


COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128, "type": "int"}}},
}


def test_no_section_is_no_quantisation() -> None:
    assert read_quantisation({}) is None
    assert read_quantisation({"quantization_config": None}) is None


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, Quantisation("awq", 128)),
        ({"quant_method": "awq", "bits": 4, "group_size": -1, "version": "GEMM"}, Quantisation("awq", -1)),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, Quantisation("awq", 64)),
        ({"quant_method": "awq", "bits": 4, "q_group_size": 64}, Quantisation("awq", 64)),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"},
            Quantisation("awq", 64, by_rows=True),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True},
            Quantisation("gptq", 64, zeros_less_one=True, activation_order=True),
        ),
        (
            {
                "quant_method": "awq",
                "bits": 4,
                "group_size": 32,
                "modules_to_not_convert": ["lm_head", 3, ""],
            },
            Quantisation("awq", 32, ("lm_head",)),
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": None},
            Quantisation("awq", 32),
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, Quantisation("gptq", 128, (), True)),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"},
            Quantisation("gptq", 128, (), False),
        ),
        (COMPRESSED, Quantisation("compressed-tensors", 128)),
        (
            COMPRESSED | {"config_groups": {"g": {"weights": {"num_bits": 4, "strategy": "channel"}}}},
            Quantisation("compressed-tensors", -1),
        ),
    ],
)
def test_a_section_gives_method_and_group(section: dict[str, Any], expected: Quantisation) -> None:
    assert read(**section) == expected


@pytest.mark.parametrize(
    ("section", "cause"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' is not supported; we run awq"),
        ({"quant_method": "fp8"}, "'fp8'"),
        ({"bits": 4}, "None"),
        ({"quant_method": "awq", "bits": 8, "group_size": 128}, "8 bits"),
        ({"quant_method": "awq", "bits": 4, "group_size": 0}, "group_size .* not 0"),
        ({"quant_method": "awq", "bits": 4, "group_size": -2}, "group_size .* not -2"),
        ({"quant_method": "awq", "bits": 4}, "no group_size"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv_fast"},
            "AWQ version 'gemv_fast'",
        ),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "marlin"}, "version 'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "is_marlin_format": True}, "'marlin'"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "3 bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}, "'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"x": {"bits": 8}}}, "dynamic"),
        (COMPRESSED | {"format": "float-quantized"}, "'float-quantized'"),
        (COMPRESSED | {"config_groups": {}}, "0 different"),
        (COMPRESSED | {"config_groups": {"g": {"input_activations": {"num_bits": 8}}}}, "activations"),
        (COMPRESSED | {"config_groups": {"g": {"weights": {"num_bits": 8, "group_size": 8}}}}, "8 bits"),
        (
            COMPRESSED
            | {"config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 8, "type": "float"}}}},
            "type 'float'",
        ),
    ],
)
def test_an_unknown_quantisation_is_named(section: dict[str, Any], cause: str) -> None:
    with pytest.raises(ModelError, match=cause):
        read(**section)
