"""Typed results to the bodies of a completion, whole or in chunks of a stream; made as those of `answers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llmrs_cli.server.answers import Head, Timings, figures
from llmrs_cli.server.logprobs import CompletionScores, prompt_logprobs
from llmrs_cli.server.sse import JsonList
from llmrs_cli.text.events import LogProb, TextEvent, Usage


class Echo(NamedTuple):
    """A prompt that is to stand before its answers."""

    text: str
    first: LogProb
    """Its first token; nothing predicts it, so its score is not a number."""


class CompletionReply:
    """One response of /v1/completions; choices of the first prompt come first."""

    def __init__(
        self,
        model: str,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        echoes: Sequence[Echo] | None = None,
        only_prompt: bool = False,
        logprobs: bool = False,
        token_ids: bool = False,
        whole: bool = True,
    ) -> None:
        """`echoes`: one a prompt, if they are asked for; `only_prompt`: and nothing else; `whole`: `body` will be
        asked for."""
        self._head = Head("text_completion", "cmpl", model).fields()
        self._n = n
        self._prompts = prompts
        self._logprobs, self._token_ids = logprobs, token_ids
        self._choices = [
            _CompletionChoice(index, None if echoes is None else echoes[index // n], only_prompt, whole)
            for index in range(len(prompts) * n)
        ]

    def take(self, index: int, event: TextEvent) -> list[dict[str, Any]]:
        """Chunks that tell of `event`, which is about prompt `index`; keeps what `body` needs."""
        choice = self._choices[index * self._n + event.choice]
        text, told, ids = choice.take(event)
        finish = None if event.finish_reason is None else choice.finish_reason
        if choice.whole:
            if self._logprobs:
                choice.scores.add(told)
            return []
        if not (text or told or ids or finish):
            return []
        scores = choice.scores.part(told) if self._logprobs else None
        return [{**self._head, "choices": [self._choice_body(choice, text, scores, ids, finish)]}]

    def last_chunk(self, usage: Usage, timings: Timings | None = None) -> dict[str, Any]:
        """The last chunk of a stream whose client asked for figures."""
        return {**self._head, "choices": [], **figures(usage, timings=timings)}

    def body(self, usage: Usage, timings: Timings | None = None) -> dict[str, Any]:
        """The whole response."""
        choices = []
        for choice in self._choices:
            scores = choice.scores.whole() if self._logprobs else None
            text = "".join(choice.texts)
            body = self._choice_body(choice, text, scores, choice.token_ids, choice.finish_reason)
            if choice.prompt_scores is not None:
                body["prompt_logprobs"] = choice.prompt_scores
            choices.append(body)
        return {**self._head, "choices": choices, **figures(usage, timings=timings)}

    def _choice_body(
        self,
        choice: _CompletionChoice,
        text: str,
        scores: dict[str, Any] | None,
        token_ids: Sequence[int],
        finish: str | None,
    ) -> dict[str, Any]:
        body = {"index": choice.index, "text": text, "logprobs": scores, "finish_reason": finish}
        if self._token_ids:
            body["token_ids"] = list(token_ids)
            if not choice.begun:
                body["prompt_token_ids"] = list(self._prompts[choice.index // self._n])
        choice.begun = True
        return body


class _CompletionChoice:
    """What one choice of a completion has come to."""

    def __init__(self, index: int, echo: Echo | None, only_prompt: bool, whole: bool) -> None:
        self.index = index
        self.whole = whole
        self.begun = False
        """It has been told of."""
        self.texts: list[str] = []
        self.scores = CompletionScores()
        self.prompt_scores: JsonList | None = None
        """Those that were asked for beside the answer, not as a part of an echo."""
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._echo = echo
        self._echoed = False
        self._only_prompt = only_prompt

    def take(self, event: TextEvent) -> tuple[str, Sequence[LogProb], Sequence[int]]:
        """Text, scores and ids that `event` adds, those of an echo first."""
        text, told, ids = event.text, event.logprobs, event.token_ids
        if self._only_prompt:
            text, told, ids = "", (), ()
        if self._echo is not None:
            first = self._echo.first
            told = (*(first if score is None else score for score in event.prompt_logprobs), *told)
            text = text if self._echoed else self._echo.text + text
            self._echoed = True
        elif event.prompt_logprobs:
            self.prompt_scores = self.prompt_scores or JsonList()
            self.prompt_scores.add(prompt_logprobs(event.prompt_logprobs))
        if self.whole:
            self.texts.append(text)
            self.token_ids += ids
        if event.finish_reason is not None:
            self.finish_reason = "length" if self._only_prompt else event.finish_reason.value
        return text, told, ids
