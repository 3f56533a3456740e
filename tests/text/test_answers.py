"""Scripted checkpoints answer through the real engine: what users of such tools have seen go wrong.

Every engine here computes with the NumPy reference; the replies are those of `tests.helpers.ladder`.
Longer than most files: it is a list of small scripted cases over one fixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrs_cli.errors import ContextLengthError, LlmrsError, ModelError, RequestError
from llmrs_cli.text.generate import GenerateOptions, GenerationResult, TextEngine
from tests.helpers.byte_tokenizer import END_OF_MESSAGE, END_OF_TEXT, IM_END, byte_id, byte_ids
from tests.helpers.ladder import FLOOR, NEWLINE, TOP, Ladder, step_ids, write_ladder

A, B, C, D, X = (byte_id(ord(letter)) for letter in "ABCDx")
Opener = Callable[..., TextEngine]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Open the checkpoint of a Ladder, each only once in this file."""
    engines: dict[str, TextEngine] = {}

    def open_ladder(**options: Any) -> TextEngine:
        context = options.pop("context", 256)
        options.setdefault("vocab", 512)
        name = repr((sorted(options.items()), context))
        if name not in engines:
            folder = write_ladder(tmp_path_factory.mktemp("ladder"), Ladder(**options))
            engines[name] = TextEngine.open(folder, device="reference", context=context, rows=8)
        return engines[name]

    yield open_ladder
    for engine in engines.values():
        engine.close()


def ask(engine: TextEngine, prompt: tuple[int, ...] = (NEWLINE,), **options: Any) -> GenerationResult:
    """One question; the streamed text must be that of the result, however it is asked."""
    options.setdefault("seed", 0)
    events = list(engine.start(prompt, GenerateOptions(**options)))
    result = engine.start(prompt, GenerateOptions(**options)).result()
    assert "".join(event.text for event in events if event.choice == 0) == result.choices[0].text
    assert [token for e in events if e.choice == 0 for token in e.token_ids] == list(
        result.choices[0].token_ids
    )
    assert [score for e in events if e.choice == 0 for score in e.logprobs] == list(
        result.choices[0].logprobs
    )
    return result


def text_and_end(result: GenerationResult) -> tuple[str, str, int]:
    return result.choices[0].text, result.choices[0].finish_reason, result.usage.completion_tokens


# -- text ---------------------------------------------------------------------------------------------


def test_an_emoji_over_four_tokens_arrives_whole(opened: Opener) -> None:
    engine = opened(reply=(220, 172, 253, 246, 232, "<|im_end|>"))
    assert text_and_end(ask(engine)) == (" 😊", "stop", 6)


def test_a_chat_is_answered(opened: Opener) -> None:
    engine = opened()
    prompt = engine.render([{"role": "user", "content": "hi"}])
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text_and_end(ask(engine, prompt.ids)) == ("Hello world", "stop", 3)


def test_an_id_of_the_padded_vocabulary_is_no_text_and_no_error(opened: Opener) -> None:
    engine = opened(reply=("I", 900, "J", "<|im_end|>"), vocab=1024)
    assert text_and_end(ask(engine)) == ("IJ", "stop", 4)


def test_prompt_ids_reach_to_the_last_row_of_the_embedding(opened: Opener) -> None:
    engine = opened(vocab=1024)
    assert ask(engine, (1023,), max_tokens=1).usage.completion_tokens == 1
    for bad in ((1024,), (-1,), (1, 2**40)):
        with pytest.raises(RequestError, match="from 0 to 1023"):
            engine.start(bad)


def test_a_tokenizer_larger_than_the_embedding_is_refused_where_it_matters(opened: Opener) -> None:
    engine = opened(vocab=256, reply=("O", "K"), after=X, eos=None)
    assert text_and_end(ask(engine, engine.encode("x"), max_tokens=2)) == ("OK", "length", 2)
    with pytest.raises(ModelError, match="303.*from 0 to 255"):
        engine.render([{"role": "user", "content": "x"}])


def test_an_empty_prompt_is_refused(opened: Opener) -> None:
    with pytest.raises(RequestError, match="empty"):
        opened().start(())


# -- ends ---------------------------------------------------------------------------------------------


def test_every_end_token_of_a_list_ends_the_answer(opened: Opener) -> None:
    engine = opened(reply=("O", "K", "<|eom|>", "Z"), eos=(IM_END, END_OF_TEXT, END_OF_MESSAGE))
    assert text_and_end(ask(engine)) == ("OK", "stop", 3)


@pytest.mark.parametrize(
    ("eos", "generation", "end"),
    [
        ((IM_END, END_OF_TEXT), {}, "<|endoftext|>"),
        (END_OF_TEXT, {}, "<|endoftext|>"),
        (None, {}, "<|im_end|>"),
        (None, None, "<|im_end|>"),
    ],
)
def test_end_tokens_come_in_every_form(opened: Opener, eos: Any, generation: Any, end: str) -> None:
    engine = opened(reply=("O", "K", end), eos=eos, generation=generation)
    assert text_and_end(ask(engine)) == ("OK", "stop", 3)


def test_without_any_end_token_the_answer_runs_to_its_limit(opened: Opener) -> None:
    engine = opened(reply=("abc", "de"), eos=None, tied=True, tokenizer=False)
    assert engine.eos_ids == ()
    result = ask(engine, (5,), max_tokens=7)
    assert (result.choices[0].finish_reason, result.choices[0].token_ids) == ("length", (5,) * 7)


@pytest.mark.parametrize("options", [{}, {"max_tokens": 2}, {"max_tokens": 1, "n": 2}])
def test_text_that_only_began_a_stop_string_is_released(opened: Opener, options: dict[str, Any]) -> None:
    engine = opened(reply=("abc", "de", "<|im_end|>"))
    text = "abc" if options.get("max_tokens") == 1 else "abcde"
    assert ask(engine, stop=("def", "c?", "dex"), **options).choices[0].text == text


def test_a_stop_string_across_tokens_ends_the_answer(opened: Opener) -> None:
    engine = opened(reply=(" alpha", " be", "ta gam", "ma", " delta"))
    assert text_and_end(ask(engine, stop=("beta gamma",))) == (" alpha ", "stop", 4)


def test_the_minimum_holds_for_end_tokens_and_stop_strings(opened: Opener) -> None:
    table = {last: {IM_END: TOP, END_OF_TEXT: TOP - 1, X: 0.0} for last in (NEWLINE, X)}
    engine = opened(reply=(), table=table)
    assert text_and_end(ask(engine, temperature=0)) == ("", "stop", 1)
    assert text_and_end(ask(engine, temperature=0, min_tokens=5)) == ("xxxxx", "stop", 6)
    assert text_and_end(ask(engine, temperature=0, min_tokens=5, stop=("xx",))) == ("xxx", "stop", 5)


def test_ignoring_end_tokens_runs_to_the_limit(opened: Opener) -> None:
    engine = opened(reply=("O", "K", "<|im_end|>", "Z"))
    assert text_and_end(ask(engine, ignore_eos=True, max_tokens=4)) == ("OKZ", "length", 4)


# -- sampling -----------------------------------------------------------------------------------------


def choices_of(
    engine: TextEngine, count: int, prompt: tuple[int, ...] = (NEWLINE,), **options: Any
) -> set[int]:
    """Ids of one-token answers to `count` seeds."""
    started = [
        engine.start(prompt, GenerateOptions(max_tokens=1, seed=seed, **options)) for seed in range(count)
    ]
    return {generation.result().choices[0].token_ids[0] for generation in started}


@pytest.mark.parametrize(
    "options", [{"top_p": 0.1}, {"top_p": 1.0}, {"top_k": 1}, {"top_k": 50}, {"temperature": 0.0}]
)
def test_temperature_zero_is_always_the_best_token(opened: Opener, options: dict[str, Any]) -> None:
    engine = opened(reply=(), table={NEWLINE: {A: 1.0, B: 0.9}})
    assert choices_of(engine, 20, **{"temperature": 0, **options}) == {A}


@pytest.mark.parametrize(("top_p", "expected"), [(1.0, {A, B, C, D}), (0.6, {A, B}), (0.0, {A})])
def test_top_p_keeps_what_it_says_and_zero_is_not_one(
    opened: Opener, top_p: float, expected: set[int]
) -> None:
    shares = {A: 0.5, B: 0.3, C: 0.15, D: 0.05}
    engine = opened(
        reply=(), table={NEWLINE: {token: math.log(p) for token, p in shares.items()}}, dtype=np.float32
    )
    assert choices_of(engine, 100, temperature=1.0, top_p=top_p) == expected


@pytest.mark.parametrize(("a", "c", "penalised"), [(1.5, 1.0, C), (-1.0, -1.5, C)])
def test_a_repetition_penalty_lowers_positive_and_negative_logits(
    opened: Opener, a: float, c: float, penalised: int
) -> None:
    engine = opened(reply=(), table={NEWLINE: {A: a, C: c}})
    prompt = (A, NEWLINE)
    assert choices_of(engine, 1, prompt, temperature=0) == {A}
    assert choices_of(engine, 1, prompt, temperature=0, repetition_penalty=2.0) == {penalised}


def test_a_bias_decides_and_a_bad_one_is_refused_by_name(opened: Opener) -> None:
    engine = opened(reply=(), table={NEWLINE: {A: 1.0, B: 0.9}})
    assert choices_of(engine, 1, temperature=0, logit_bias=((B, 100.0),)) == {B}
    assert A not in choices_of(engine, 20, temperature=1.0, logit_bias=((A, -100.0),))
    for bias in ((999_999_999, -100.0), (-1, 5.0), (5, math.inf), (5, 101.0)):
        with pytest.raises(RequestError) as error:
            engine.start((NEWLINE,), GenerateOptions(logit_bias=(bias,)))
        assert error.value.param == "logit_bias"
    assert choices_of(engine, 1, temperature=0) == {A}


def test_a_seed_gives_the_same_answer_whoever_runs_beside_it(opened: Opener, tmp_path: Path) -> None:
    flat = dict.fromkeys(range(50), 0.0)
    ladder = Ladder(vocab=512, reply=(), table=dict.fromkeys((NEWLINE, *range(50)), flat))
    wanted = GenerateOptions(seed=42, temperature=1.0, max_tokens=20)

    def answer(engine: TextEngine, *neighbours: int | None) -> str:
        others = [
            engine.start((NEWLINE,), GenerateOptions(seed=seed, temperature=1.0, max_tokens=20))
            for seed in neighbours
        ]
        text = engine.start((NEWLINE,), wanted).result().choices[0].text
        for other in others:
            other.result()
        return text

    texts = set()
    folder = write_ladder(tmp_path, ladder)
    for _ in range(2):
        with TextEngine.open(folder, device="reference", context=256, rows=8) as engine:
            texts |= {answer(engine), answer(engine, None, None, None), answer(engine, 1, 2, 42)}
    assert len(texts) == 1
    assert len(set(texts.pop())) > 5


def test_choices_of_one_seed_differ_and_come_again(opened: Opener) -> None:
    flat = dict.fromkeys(range(50), 0.0)
    engine = opened(reply=(), table=dict.fromkeys((NEWLINE, *range(50)), flat))
    first, again = (ask(engine, n=3, max_tokens=10, temperature=1.0, seed=9) for _ in range(2))
    assert [choice.text for choice in first.choices] == [choice.text for choice in again.choices]
    assert len({choice.text for choice in first.choices}) == 3


def test_the_models_own_sampling_is_used_shown_and_overruled(opened: Opener) -> None:
    shipped = {"do_sample": True, "temperature": 2.0, "top_k": 1, "repetition_penalty": 2.0}
    engine = opened(reply=(), table={NEWLINE: {A: 1.5, C: 1.0}}, generation=shipped)
    assert str(engine.defaults) == "temperature 2, top-k 1, repetition penalty 2 (from the model)"
    assert choices_of(engine, 3, (A, NEWLINE)) == {C}
    assert choices_of(engine, 3, (A, NEWLINE), repetition_penalty=1.0) == {A}
    assert choices_of(engine, 3, (A, NEWLINE), temperature=0) == {C}


# -- log-probabilities --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"top_k": 1}, {"logit_bias": ((A, -100.0),)}, {"min_p": 1.0}])
def test_log_probabilities_stay_finite_under_every_rule(opened: Opener, options: dict[str, Any]) -> None:
    engine = opened(reply=(), table={NEWLINE: {A: 1.0, B: 0.9}})
    (score,) = ask(engine, max_tokens=1, logprobs=5, **options).choices[0].logprobs
    assert len(score.top) == 5
    assert all(math.isfinite(top.logprob) for top in (score, *score.top))


def test_alternatives_of_like_text_are_all_there(opened: Opener) -> None:
    fragments = {172 + i: 5.0 - i for i in range(5)}
    engine = opened(reply=(), table={NEWLINE: fragments})
    (score,) = ask(engine, max_tokens=1, temperature=0, logprobs=5).choices[0].logprobs
    assert [top.token for top in score.top] == list(fragments)
    assert {top.text for top in score.top} == {"\ufffd"}
    assert len({top.data for top in score.top}) == 5
    assert [top.logprob for top in score.top] == sorted((top.logprob for top in score.top), reverse=True)


@pytest.mark.parametrize("options", [{"temperature": t} for t in (0.0, 0.5, 1.0, 2.0)] + [{"top_p": 0.1}])
def test_log_probabilities_are_the_models_own_before_sampling_rules(
    opened: Opener, options: dict[str, Any]
) -> None:
    table = {NEWLINE: dict.fromkeys(range(512), -50.0) | {A: 1.0, B: 0.0, C: -1.0, D: -2.0}}
    engine = opened(reply=(), table=table, dtype=np.float32)
    (score,) = ask(engine, max_tokens=1, logprobs=4, **options).choices[0].logprobs
    assert [top.logprob for top in score.top] == pytest.approx([-0.4402, -1.4402, -2.4402, -3.4402], abs=1e-4)


def test_log_probabilities_match_the_tokens_even_where_text_was_cut(opened: Opener) -> None:
    engine = opened(reply=(" alpha", " be", "ta gam", "ma", " delta"))
    choice = ask(engine, stop=("beta gamma",), logprobs=1).choices[0]
    assert [score.token for score in choice.logprobs] == list(choice.token_ids)
    assert [score.text for score in choice.logprobs] == [" alpha", " be", "ta gam", "ma"]


def test_prompt_log_probabilities_are_one_per_prompt_token(opened: Opener) -> None:
    engine = opened(reply=("abc", "de"))
    prompt = (NEWLINE, *step_ids(["abc", "de"]))
    for _ in range(2):
        scores = ask(engine, prompt, max_tokens=1, prompt_logprobs=1).prompt_logprobs
        assert scores is not None
        assert [score and score.text for score in scores] == [None, "abc", "de"]
        assert scores[1] is not None
        assert scores[1].logprob == pytest.approx(-math.log1p(511 * math.exp(FLOOR - TOP)), abs=1e-6)


# -- the context --------------------------------------------------------------------------------------


def test_a_prompt_beyond_the_context_is_refused_not_cut(opened: Opener) -> None:
    engine = opened(context=64)
    for prompt in (
        engine.render([{"role": "user", "content": "x" * 200}]).ids,
        engine.encode("x" * 200),
        (1,) * 64,
    ):
        with pytest.raises(ContextLengthError, match=rf"{len(prompt)} tokens.*64"):
            engine.start(prompt)


def test_an_answer_ends_where_the_context_does(opened: Opener) -> None:
    engine = opened(context=64)
    for options in ({"max_tokens": 1000}, {}):
        result = ask(engine, (NEWLINE,) * 40, ignore_eos=True, **options)
        assert (result.choices[0].finish_reason, result.usage.completion_tokens) == ("length", 24)
    assert ask(engine, (NEWLINE,) * 63).usage.completion_tokens == 1


def test_an_answer_without_a_limit_is_not_cut_short(opened: Opener) -> None:
    ids = tuple(range(40))
    engine = opened(context=64, reply=(*ids, "<|im_end|>"))
    assert text_and_end(ask(engine))[1:] == ("stop", 41)


# -- the whole ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("awq", [False, True])
def test_every_family_answers_plain_and_quantised(tmp_path: Path, family: str, awq: bool) -> None:
    folder = write_ladder(tmp_path, Ladder(family=family, awq=awq))
    with TextEngine.open(folder, device="reference", context=64) as engine:
        assert text_and_end(ask(engine))[0] == "Hello world"


def test_a_prefix_that_was_seen_is_reported_as_cached(opened: Opener) -> None:
    engine = opened()
    prompt = (*byte_ids("a prompt of more than one block of keys and values"), NEWLINE)
    cold = engine.start(prompt, GenerateOptions(temperature=0), salt="fresh").result()
    warm = engine.start(prompt, GenerateOptions(temperature=0), salt="fresh").result()
    other = engine.start(prompt, GenerateOptions(temperature=0), salt="other").result()
    assert cold.usage.cached_tokens == other.usage.cached_tokens == 0
    assert warm.usage.cached_tokens > 0
    assert cold.choices == warm.choices == other.choices


def test_a_model_without_a_template_cannot_chat_but_completes(opened: Opener) -> None:
    engine = opened(chat_template=None)
    assert text_and_end(ask(engine, engine.encode("\n")))[0] == "Hello world"
    with pytest.raises(ModelError, match="no chat template"):
        engine.render([{"role": "user", "content": "hi"}])


def test_closing_ends_what_runs_and_refuses_what_comes(tmp_path: Path) -> None:
    engine = TextEngine.open(write_ladder(tmp_path, Ladder(tied=True)), device="reference", context=2048)
    generation = engine.start((5,), GenerateOptions(ignore_eos=True))
    next(iter(generation))
    running = engine.start((5,), GenerateOptions(ignore_eos=True))
    engine.close()
    assert running.result().choices[0].finish_reason in ("abort", "length")
    with pytest.raises(LlmrsError, match="closed"):
        engine.start((5,))


def test_progress_is_told_while_loading(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = write_ladder(tmp_path)
    TextEngine.open(
        folder, device="reference", context=64, progress=lambda done, total: seen.append((done, total))
    ).close()
    assert seen[-1][0] == seen[-1][1] > 0
