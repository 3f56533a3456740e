"""What a config.json says becomes a ModelSpec, or one sentence that names the field.

Longer than most files: it is a list of small cases, field by field.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.model.spec import FAMILIES, ModelSpec, RopeSpec, from_config
from llmrs_cli.errors import ModelError
from tests.model.configs import config

CHECKPOINTS = Path(__file__).parent.parent / "data" / "golden" / "checkpoints"
LLAMA, MISTRAL, QWEN2, QWEN3 = FAMILIES


def refusal(**changes: Any) -> str:
    with pytest.raises(ModelError) as caught:
        from_config(config(**changes))
    return str(caught.value)


def spec(architecture: str = LLAMA, **changes: Any) -> ModelSpec:
    return from_config(config(architecture, **changes))


@pytest.mark.parametrize("folder", sorted(CHECKPOINTS.iterdir()), ids=lambda path: path.name)
def test_every_golden_configuration_is_read(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    found = from_config(raw, json.loads((folder / "generation_config.json").read_text()))
    assert found.family == raw["model_type"]
    assert found.hidden == raw["hidden_size"]
    assert found.dtype == raw["torch_dtype"]
    assert found.rope.theta == (raw.get("rope_theta") or raw["rope_parameters"]["rope_theta"])
    assert found.tied_head is raw["tie_word_embeddings"]
    assert 2 in found.eos_ids


def test_families_differ_in_biases_and_norms() -> None:
    flags = {
        name: (s.qkv_bias, s.o_bias, s.mlp_bias, s.qk_norm)
        for name in FAMILIES
        for s in [spec(name, attention_bias=True, mlp_bias=True)]
    }
    assert flags == {
        LLAMA: (True, True, True, False),
        MISTRAL: (False, False, False, False),
        QWEN2: (True, False, False, False),
        QWEN3: (True, True, False, True),
    }
    assert spec(QWEN2).qkv_bias and not spec(LLAMA).qkv_bias and not spec(QWEN3).qkv_bias


def test_an_unknown_architecture_is_named_with_the_known_ones() -> None:
    message = refusal(architectures=["FalconForCausalLM"])
    assert "'FalconForCausalLM'" in message
    assert all(name in message for name in FAMILIES)


@pytest.mark.parametrize("named", [None, [], ...])
def test_the_model_type_stands_in_for_missing_architectures(named: Any) -> None:
    assert from_config(config(architectures=named, model_type="qwen3")).family == "qwen3"
    with pytest.raises(ModelError, match="'gpt2' is not supported"):
        from_config(config(architectures=named, model_type="gpt2"))
    with pytest.raises(ModelError, match="no model_type"):
        from_config(config(architectures=named))


def test_a_head_of_another_kind_is_no_language_model() -> None:
    assert "Qwen2ForSequenceClassification" in refusal(architectures=["Qwen2ForSequenceClassification"])


@pytest.mark.parametrize("head_dim", [None, ..., 16])
def test_a_null_or_absent_head_size_is_hidden_over_heads(head_dim: Any) -> None:
    assert spec(head_dim=head_dim) == spec(head_dim=16)


def test_qwen3_without_a_head_size_has_128() -> None:
    assert spec(QWEN3).head_dim == 128
    assert spec(QWEN3, head_dim=None).head_dim == 16


def test_absent_key_heads_are_as_many_as_query_heads() -> None:
    assert spec(num_key_value_heads=...).kv_heads == 4
    assert spec(num_key_value_heads=None).kv_heads == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", -1),
        ("vocab_size", True),
        ("vocab_size", 320.0),
        ("vocab_size", "320"),
        ("vocab_size", 2**70),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 0),
        ("hidden_size", [64]),
        ("intermediate_size", 2**31),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 0),
        ("head_dim", 0),
        ("head_dim", 2**40),
        ("max_position_embeddings", 0),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", "1e-5"),
        ("rope_theta", float("nan")),
        ("rope_theta", float("inf")),
        ("rope_theta", -10000.0),
        ("rope_theta", False),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", 1),
        ("partial_rotary_factor", 0.5),
        ("rope_scaling", "yarn"),
        ("eos_token_id", "2"),
        ("eos_token_id", [1, 2.0]),
        ("eos_token_id", True),
        ("dtype", 16),
        ("architectures", "LlamaForCausalLM"),
    ],
)
def test_a_field_out_of_range_is_named_with_its_value(field: str, value: Any) -> None:
    message = refusal(**{field: value})
    assert message.startswith(f"{field} in config.json must be")
    assert "not " in message and len(message) < 250


@pytest.mark.parametrize(
    "field",
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"],
)
@pytest.mark.parametrize("value", [None, ...])
def test_a_missing_size_is_named(field: str, value: Any) -> None:
    assert f"config.json has no {field}." in refusal(**{field: value})


def test_heads_that_do_not_divide_the_hidden_size_are_refused() -> None:
    assert "num_attention_heads" in refusal(num_attention_heads=5, num_key_value_heads=5)
    assert spec(num_attention_heads=5, num_key_value_heads=5, head_dim=16).heads == 5


def test_an_odd_head_size_is_refused() -> None:
    assert "head size of 15" in refusal(head_dim=15)


def test_another_activation_is_refused_by_name() -> None:
    assert "'gelu'" in refusal(hidden_act="gelu")


def test_a_long_value_is_shortened_and_escaped() -> None:
    message = refusal(architectures=["\x1b[31m" + "x" * 10_000])
    assert len(message) < 250 and "\x1b" not in message


# -- windows ------------------------------------------------------------------------------------------


def test_qwen_ignores_its_window_unless_the_flag_is_set() -> None:
    off = spec(QWEN2, sliding_window=4, use_sliding_window=False, max_window_layers=1)
    assert off == spec(QWEN2, sliding_window=...) == spec(QWEN2)
    assert off.window is None and off.max_context == 128


def test_qwen_with_the_flag_has_a_window_from_max_window_layers_on() -> None:
    on = spec(QWEN2, sliding_window=4, use_sliding_window=True, max_window_layers=1)
    assert [on.geometry(i).window for i in range(4)] == [None, 4, 4, 4]
    late = spec(QWEN2, sliding_window=4, use_sliding_window=True, max_window_layers=28)
    assert late.window is None


def test_mistral_has_its_window_in_every_layer() -> None:
    assert spec(MISTRAL).window is None
    assert [spec(MISTRAL, sliding_window=8).geometry(i).window for i in range(4)] == [8] * 4
    assert spec(MISTRAL, sliding_window=...).window == 4096


def test_llama_with_a_window_is_refused_not_run_without_it() -> None:
    assert "sliding_window" in refusal(sliding_window=64)


def test_layer_types_say_where_the_window_begins() -> None:
    kinds = ["full_attention", "full_attention", "sliding_attention", "sliding_attention"]
    found = spec(QWEN3, layer_types=kinds, sliding_window=8, use_sliding_window=True)
    assert (found.window, found.first_window_layer) == (8, 2)
    assert spec(layer_types=["full_attention"] * 4) == spec()


@pytest.mark.parametrize(
    "kinds",
    [
        ["sliding_attention", "full_attention"] * 2,
        ["full_attention"] * 3,
        ["full_attention"] * 3 + ["chunked_attention"],
        ["full_attention"] * 3 + [None],
    ],
)
def test_layer_types_that_we_cannot_run_are_refused(kinds: list[str]) -> None:
    message = refusal(architectures=[QWEN3], layer_types=kinds, sliding_window=8, use_sliding_window=True)
    assert message.startswith("layer_types")


def test_a_sliding_layer_without_a_window_is_refused() -> None:
    kinds = ["full_attention"] * 3 + ["sliding_attention"]
    assert "sliding_window" in refusal(architectures=[QWEN3], layer_types=kinds)


# -- dtype --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"dtype": "half"}, "float16"),
        ({}, None),
        ({"torch_dtype": "auto"}, None),
        ({"dtype": None, "torch_dtype": "float32"}, "float32"),
        ({"dtype": "float16", "torch_dtype": "float32"}, "float16"),
    ],
)
def test_dtype_goes_before_torch_dtype(keys: dict[str, Any], dtype: str | None) -> None:
    assert spec(**keys).dtype == dtype


def test_a_dtype_that_we_cannot_run_is_named() -> None:
    assert "'float8_e4m3fn'" in refusal(dtype="float8_e4m3fn")


# -- token ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "generation", "ids"),
    [
        (2, None, (2,)),
        ([2, 3], None, (2, 3)),
        (None, None, ()),
        (..., {}, ()),
        (2, {"eos_token_id": [5, 2]}, (5, 2)),
        ([1, 1], {"eos_token_id": None}, (1,)),
        (None, {"eos_token_id": 7}, (7,)),
    ],
)
def test_end_tokens_come_from_both_files(ours: Any, generation: Any, ids: tuple[int, ...]) -> None:
    assert from_config(config(eos_token_id=ours), generation).eos_ids == ids


def test_ids_outside_the_vocabulary_can_never_be_drawn_and_are_dropped() -> None:
    found = spec(eos_token_id=[-1, 319, 320], bos_token_id=50256)
    assert (found.eos_ids, found.bos_id) == ((319,), None)
    assert spec(bos_token_id=1).bos_id == 1


# -- rotary positions ---------------------------------------------------------------------------------

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_old_and_new_spellings_of_rope_mean_the_same() -> None:
    old = spec(rope_theta=5e5, rope_scaling=LLAMA3)
    new = spec(rope_theta=..., rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    assert old == new == spec(rope_theta=5e5, rope_scaling=LLAMA3, rope_parameters=LLAMA3)
    assert old.rope == RopeSpec("llama3", 5e5, 8.0, 64, 1.0, 4.0)
    assert spec(rope_theta=..., rope_parameters={"rope_theta": 77.0}).rope == RopeSpec(theta=77.0)
    assert spec(rope_theta=...).rope.theta == 10000.0
    assert spec(rope_scaling=None).rope == spec(rope_scaling={}).rope == RopeSpec()


def test_spellings_that_contradict_each_other_are_refused() -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    assert "contradict" in refusal(rope_scaling=LLAMA3, rope_parameters=linear)
    assert "type" in refusal(rope_scaling=linear | {"type": "yarn"})


def test_an_unknown_kind_is_named_with_the_known_ones() -> None:
    message = refusal(rope_scaling={"rope_type": "spiral", "factor": 2.0})
    assert "'spiral'" in message and "yarn" in message


@pytest.mark.parametrize(
    ("section", "missing"),
    [
        ({"factor": 2.0}, "rope_type"),
        ({"rope_type": "yarn"}, "factor"),
        ({"type": "linear"}, "factor"),
        ({"type": "dynamic"}, "factor"),
        ({k: v for k, v in LLAMA3.items() if k != "low_freq_factor"}, "low_freq_factor"),
        (
            {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"},
            "original_max_position_embeddings",
        ),
    ],
)
def test_a_missing_field_of_rope_scaling_is_named(section: dict[str, Any], missing: str) -> None:
    assert f"rope_scaling of config.json has no {missing}." in refusal(rope_scaling=section)


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ({"rope_type": "yarn", "factor": float("nan")}, "factor"),
        ({"rope_type": "yarn", "factor": 0.5}, "factor"),
        ({"rope_type": "yarn", "factor": 4.0, "truncate": False}, "truncate"),
        ({"rope_type": "linear", "factor": 4.0, "beta_fast": 3}, "beta_fast"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "high_freq_factor"),
        ({"rope_type": ["yarn"]}, "rope_type"),
    ],
)
def test_a_rope_value_that_we_cannot_run_is_named(section: dict[str, Any], word: str) -> None:
    assert word in refusal(rope_scaling=section)


def test_stretching_raises_the_context_limit_where_it_is_meant_to() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert spec(QWEN2, max_position_embeddings=32768, rope_scaling=yarn).max_context == 131072
    assert spec(QWEN2, max_position_embeddings=131072, rope_scaling=yarn).max_context == 131072
    assert spec(rope_scaling={"type": "linear", "factor": 2.0}).max_context == 256
    assert spec(rope_scaling={"type": "dynamic", "factor": 2.0}).max_context == 128
    assert spec(rope_scaling=LLAMA3).max_context == 128


def test_no_context_is_stretched_past_any_bound() -> None:
    assert spec(rope_scaling={"type": "linear", "factor": 1e6}).max_context == 1 << 24


def test_the_attention_factor_of_yarn_is_given_or_the_ratio_of_two_scales() -> None:
    yarn = {"type": "yarn", "factor": 40.0}
    assert spec(rope_scaling=yarn).rope.attention_factor is None
    assert spec(rope_scaling=yarn | {"attention_factor": 0.5}).rope.attention_factor == 0.5
    ratio = spec(rope_scaling=yarn | {"mscale": 1.0, "mscale_all_dim": 0.707}).rope.attention_factor
    assert ratio == pytest.approx(1.3688879 / 1.2608038, rel=1e-6)


# -- safety -------------------------------------------------------------------------------------------


def test_code_that_a_configuration_names_is_never_imported(tmp_path: Path) -> None:
    """A module beside the config would leave a mark if anything imported it."""
    mark = tmp_path / "imported"
    (tmp_path / "modeling_evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    raw = config(auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"}, _attn_implementation_internal="a/b")
    (tmp_path / "config.json").write_text(json.dumps(raw))
    script = (
        "import json, sys\n"
        "from llmrs_cli.engine.model.spec import from_config\n"
        "before = set(sys.modules)\n"
        "from_config(json.load(open('config.json')))\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
    assert not mark.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    architecture=st.sampled_from(list(FAMILIES)),
    changes=st.dictionaries(
        st.sampled_from([*config(), "head_dim", "rope_scaling", "rope_parameters", "layer_types", "dtype"]),
        JSON,
        max_size=3,
    ),
    generation=st.none() | st.dictionaries(st.just("eos_token_id"), JSON),
)
def test_any_configuration_is_read_or_refused_in_one_sentence(
    architecture: str, changes: dict[str, Any], generation: dict[str, Any] | None
) -> None:
    try:
        found = from_config(config(architecture) | changes, generation)
    except ModelError as error:
        assert len(str(error)) < 400
    else:
        assert found.heads % found.kv_heads == 0 and found.head_dim % 2 == 0
        assert all(0 <= i < found.vocab for i in found.eos_ids)
