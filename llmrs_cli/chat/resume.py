"""An answer that goes on from the very tokens at which it was cut.

The engine gets prompt and answer so far as one prompt, so a greedy answer that was cut and continued has the
tokens of one that was not. Text is decoded from the answer's first token on: a character or a stop string
that the cut went through comes out whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import UsageError
from llmrs_cli.text.events import GenerationResult, TextEvent
from llmrs_cli.text.stream import StreamDecoder

if TYPE_CHECKING:
    from llmrs_cli.text.generate import GenerateOptions, TextEngine


class Resumed:
    """The rest of an answer; iterate as over a `Generation`. Events carry only text that is new."""

    def __init__(
        self, engine: TextEngine, prompt: Sequence[int], begun: Sequence[int], options: GenerateOptions
    ) -> None:
        """`begun`: ids of the answer so far. Raises what `TextEngine.start` raises, UsageError for an answer
        that follows a grammar."""
        if options.grammar:
            raise UsageError(
                "An answer that is held to a form cannot go on.", hint="/regen answers once more."
            )
        assert engine.tokenizer is not None, "there was an answer with text"
        self._decoder = StreamDecoder(engine.tokenizer, options.stop, include_stop=options.include_stop)
        self.before = self._decoder.push(begun, may_stop=False)
        """Text that was certain at the cut."""
        self._begun = len(begun)
        self._min_tokens = options.min_tokens
        rest = replace(options, stop=(), min_tokens=max(0, options.min_tokens - len(begun)))
        self._rest = engine.start((*prompt, *begun), rest)
        self.seed = self._rest.seed
        self._taken = 0

    def __iter__(self) -> Iterator[TextEvent]:
        for event in self._rest:
            if self._decoder.matched is None:
                yield event._replace(text=self._text(event))

    def cancel(self) -> None:
        """As `Generation.cancel`."""
        self._rest.cancel()

    def result(self) -> GenerationResult:
        """As `Generation.result`, of the rest alone; its tokens end with those of a stop string."""
        result = self._rest.result()
        (choice,) = result.choices
        if self._decoder.matched is not None:
            ids = choice.token_ids[: self._taken]
            choice = replace(choice, token_ids=ids, finish_reason=FinishReason.STOP)
        return replace(result, choices=(choice,))

    def _text(self, event: TextEvent) -> str:
        pieces = []
        for number, token in enumerate(event.token_ids, 1):
            ended = event.finish_reason is FinishReason.STOP and number == len(event.token_ids)
            self._taken += 1
            may_stop = self._begun + self._taken >= self._min_tokens
            pieces.append(self._decoder.push(() if ended else (token,), may_stop=may_stop))
            if self._decoder.matched is not None:
                self._rest.cancel()
                break
        else:
            pieces += [self._decoder.finish()] if event.finish_reason is not None else []
        return "".join(pieces)
