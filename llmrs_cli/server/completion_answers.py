"""Typed results to the bodies of a completion, whole or in chunks of a stream; made as those of `answers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrs_cli.server.answers import Head, Timings, figures
from llmrs_cli.server.logprobs import completion_logprobs, prompt_logprobs
from llmrs_cli.text.events import LogProb, TextEvent, Usage


class CompletionReply:
    """One response of /v1/completions; choices of the first prompt come first."""

    def __init__(
        self,
        model: str,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        echoes: Sequence[str] | None = None,
        only_prompt: bool = False,
        logprobs: bool = False,
        token_ids: bool = False,
        whole: bool = True,
    ) -> None:
        """`echoes`: the text of each prompt, to stand before its answers; `only_prompt`: and nothing else;
        `whole`: `body` will be asked for."""
        self._head = Head("text_completion", "cmpl", model).fields()
        self._n = n
        self._prompts = prompts
        self._only_prompt = only_prompt
        self._logprobs, self._token_ids = logprobs, token_ids
        self._choices = [
            _CompletionChoice(index, None if echoes is None else echoes[index // n], whole)
            for index in range(len(prompts) * n)
        ]

    def take(
        self, index: int, event: TextEvent, scores: Sequence[LogProb] | None = None
    ) -> list[dict[str, Any]]:
        """Chunks that tell of `event`; `scores`: those of prompt `index`, for an echo."""
        choice = self._choices[index * self._n + event.choice]
        text, told, ids = choice.take(event, scores, self._only_prompt)
        finish = None if event.finish_reason is None else choice.finish_reason
        if not text and not told and finish is None and not self._token_ids:
            return []
        return [{**self._head, "choices": [self._choice_body(choice, text, told, ids, finish)]}]

    def last_chunk(self, usage: Usage, timings: Timings | None = None) -> dict[str, Any]:
        """The last chunk of a stream whose client asked for figures."""
        return {**self._head, "choices": [], **figures(usage, timings=timings)}

    def body(
        self,
        usage: Usage,
        timings: Timings | None = None,
        scores: Sequence[Sequence[LogProb | None] | None] | None = None,
    ) -> dict[str, Any]:
        """The whole response. `scores`: those of each prompt, if asked for."""
        choices = []
        for choice in self._choices:
            text = "".join(choice.texts)
            body = self._choice_body(choice, text, choice.logprobs, choice.token_ids, choice.finish_reason, 0)
            asked = scores[choice.index // self._n] if scores else None
            if asked is not None:
                body["prompt_logprobs"] = prompt_logprobs(asked)
            choices.append(body)
        return {**self._head, "choices": choices, **figures(usage, timings=timings)}

    def _choice_body(
        self,
        choice: _CompletionChoice,
        text: str,
        scores: Sequence[LogProb],
        token_ids: Sequence[int],
        finish: str | None,
        offset: int | None = None,
    ) -> dict[str, Any]:
        at = choice.offset if offset is None else offset
        body = {
            "index": choice.index,
            "text": text,
            "logprobs": completion_logprobs(scores, at) if self._logprobs else None,
            "finish_reason": finish,
        }
        if self._token_ids:
            body["token_ids"] = list(token_ids)
            body["prompt_token_ids"] = list(self._prompts[choice.index // self._n])
        return body


class _CompletionChoice:
    """What one choice of a completion has come to."""

    def __init__(self, index: int, echo: str | None, whole: bool) -> None:
        self.index = index
        self.texts: list[str] = []
        self.logprobs: list[LogProb] = []
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.offset = 0
        """Where the text of the latest event begins."""
        self._length = 0
        self._echo = echo
        self._whole = whole

    def take(
        self, event: TextEvent, scores: Sequence[LogProb] | None, only_prompt: bool
    ) -> tuple[str, Sequence[LogProb], Sequence[int]]:
        """Text, scores and ids that `event` adds, the echo before the first of them."""
        text, told, ids = event.text, list(event.logprobs), list(event.token_ids)
        if only_prompt:
            text, told, ids = "", [], []
        if self._echo is not None:
            text, told, self._echo = self._echo + text, [*(scores or ()), *told], None
        self.offset, self._length = self._length, self._length + len(text)
        if self._whole:
            self.texts.append(text)
            self.logprobs += told
            self.token_ids += ids
        if event.finish_reason is not None:
            self.finish_reason = "length" if only_prompt else event.finish_reason.value
        return text, told, ids
