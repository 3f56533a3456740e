"""Memory plans from configurations alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.errors import DoesNotFitError, ModelError
from llmrs_cli.hub.aliases import ALIASES, Alias
from llmrs_cli.hub.fit import RESERVE, Fit, default_model, fit_check, plan, require_fit, weight_bytes

GB = 10**9
CHECKPOINTS = Path(__file__).parents[1] / "data" / "golden" / "checkpoints"
BIG = plan(ALIASES["qwen2.5-7b"].config, free=24 * GB)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        # sums of the safetensors files that the publishers list, in GB
        ("qwen2.5-0.5b", 0.988),
        ("qwen2.5-3b", 6.17),
        ("qwen2.5-7b", 15.23),
        ("qwen2.5-7b-awq", 5.57),
        ("qwen3-8b", 16.38),
        ("llama3.2-1b", 2.47),
        ("llama3.1-8b", 16.06),
        ("smollm2-1.7b", 3.42),
    ],
)
def test_computed_weights_agree_with_the_published_files(name: str, size: float) -> None:
    config = ALIASES[name].config
    assert weight_bytes(from_config(config), config) == pytest.approx(size * GB, rel=0.01)


@pytest.mark.parametrize("name", ["tiny-qwen2-sharded-v4", "tiny-qwen3-v5", "tiny-qwen2-awq-g128"])
def test_computed_weights_agree_with_files_on_disk(name: str) -> None:
    folder = CHECKPOINTS / name
    config = json.loads((folder / "config.json").read_bytes())
    on_disk = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert weight_bytes(from_config(config), config) == pytest.approx(on_disk, rel=0.02)


def test_the_cache_is_a_key_and_a_value_for_each_layer_and_kv_head() -> None:
    assert BIG.kv_per_token == 2 * 28 * 4 * 128 * 2
    assert plan(ALIASES["qwen2.5-7b"].config, free=0, kv_itemsize=4).kv_per_token == 2 * BIG.kv_per_token


def test_without_a_context_a_short_one_must_fit() -> None:
    assert BIG.context == 2048
    assert plan({**ALIASES["qwen2.5-7b"].config, "max_position_embeddings": 512}, free=0).context == 512


@given(
    weights=st.integers(1, 100 * GB),
    kv_per_token=st.integers(1, 10**6),
    parallel=st.integers(1, 256),
    model_context=st.integers(1, 10**6),
    free=st.integers(0, 200 * GB),
)
def test_the_largest_context_fits_and_one_more_token_does_not(
    weights: int, kv_per_token: int, parallel: int, model_context: int, free: int
) -> None:
    fit = Fit(weights, kv_per_token, 1, parallel, model_context, free)
    largest = fit.largest_context
    assert 0 <= largest <= model_context
    if largest:
        assert replace(fit, context=largest).fits
    if largest < model_context:
        assert not replace(fit, context=largest + 1).fits


def test_what_fits_passes_and_what_does_not_says_both_numbers() -> None:
    require_fit(BIG, "qwen2.5-7b")
    with pytest.raises(DoesNotFitError) as caught:
        require_fit(replace(BIG, free=4 * GB), "qwen2.5-7b")
    assert caught.value.exit_code == 6
    assert caught.value.message == (
        "'qwen2.5-7b' needs 15.6 GB of memory (weights 15.2 GB, KV cache 117 MB for 2,048 tokens), "
        "and 4.0 GB are free."
    )


@pytest.mark.parametrize(
    ("name", "free", "context", "way_out"),
    [
        ("qwen2.5-7b", 17 * GB, 32768, "It fits with --ctx 25600."),
        ("qwen2.5-14b", 24 * GB, None, "qwen2.5-14b-awq fits."),
        ("qwen2.5-7b", 4 * GB, None, "qwen3-4b-awq fits."),
        ("llama3.1-8b", 8 * GB, None, "llama3.2-3b fits."),
        ("smollm2-1.7b", 10**8, None, "Free some memory, or take a smaller model."),
    ],
)
def test_the_hint_names_the_best_that_fits(name: str, free: int, context: int | None, way_out: str) -> None:
    fit = plan(ALIASES[name].config, free=free, context=context)
    with pytest.raises(DoesNotFitError) as caught:
        require_fit(fit, name)
    assert caught.value.hint == way_out


@pytest.mark.parametrize("name", ALIASES)
def test_every_way_out_is_one(name: str) -> None:
    """What the hint offers fits indeed, whatever the model and the memory."""
    for free in (GB // 2, 2 * GB, 8 * GB, 20 * GB):
        fit = plan(ALIASES[name].config, free=free)
        if fit.fits:
            continue
        with pytest.raises(DoesNotFitError) as caught:
            require_fit(fit, name)
        offered = str(caught.value.hint).removesuffix(" fits.")
        assert offered not in ALIASES or plan(ALIASES[offered].config, free=free).fits


def test_several_requests_at_once_need_several_caches() -> None:
    fit = plan(ALIASES["qwen2.5-7b"].config, free=GB, context=4096, parallel=8)
    assert fit.kv == 8 * 4096 * fit.kv_per_token and fit.needed == fit.weights + fit.kv + RESERVE
    with pytest.raises(DoesNotFitError, match="for 4,096 tokens × 8 requests"):
        require_fit(fit, "qwen2.5-7b")


def test_the_check_counts_the_listed_bytes() -> None:
    check = fit_check("a/b", free=4 * GB, context=None)
    check(ALIASES["qwen2.5-7b-awq"].config, 2 * GB)
    with pytest.raises(DoesNotFitError, match="weights 5.6 GB"):
        check(ALIASES["qwen2.5-7b-awq"].config, 5_570_000_000)


def test_a_lone_gguf_is_checked_by_its_size() -> None:
    check = fit_check("a/b", free=4 * GB, context=4096, parallel=8)
    check({}, 4 * GB - RESERVE)
    with pytest.raises(DoesNotFitError) as caught:
        check({}, 5 * GB)
    assert caught.value.message == (
        "'a/b' needs 5.3 GB of memory (weights 5.0 GB, before any KV cache), and 4.0 GB are free."
    )


def test_a_configuration_that_we_cannot_run_is_a_model_error() -> None:
    with pytest.raises(ModelError):
        plan({"model_type": "mamba"}, free=GB)


@pytest.mark.parametrize(
    ("gpu_free", "name"), [(None, "smollm2-135m"), (4 * GB, "smollm2-135m"), (24 * GB, "qwen2.5-3b")]
)
def test_the_default_model_depends_on_the_gpu(gpu_free: int | None, name: str) -> None:
    assert default_model(gpu_free) == name


@pytest.mark.parametrize("alias", ALIASES.values(), ids=lambda alias: alias.name)
def test_the_engine_can_run_what_each_alias_describes(alias: Alias) -> None:
    assert from_config(alias.config).hidden == alias.config["hidden_size"]
