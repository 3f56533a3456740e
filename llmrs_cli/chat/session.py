"""One conversation at work: how the next answer is asked for, and what is remembered of it.

Nothing is cut silently. A question that cannot be asked is an error, and the conversation is left as it was
before it. An answer that was stopped is remembered as far as it went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmrs_cli.chat.answer import Shown, show
from llmrs_cli.chat.conversation import Conversation, Turn
from llmrs_cli.chat.fitting import Fitted, Fitter, Overflow, exchanges
from llmrs_cli.chat.resume import Resumed
from llmrs_cli.chat.screen import Screen
from llmrs_cli.chat.summary import sum_up
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import UsageError
from llmrs_cli.text.reasoning import ReasoningSplitter, opening

if TYPE_CHECKING:
    from llmrs_cli.text.generate import GenerateOptions, Prompt, TextEngine


class Session:
    """A conversation, and the engine that answers."""

    def __init__(
        self,
        engine: TextEngine,
        options: GenerateOptions,
        system: str | None = None,
        *,
        overflow: Overflow = Overflow.ERROR,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """`arguments`: for the chat template, such as enable_thinking."""
        self.conversation = Conversation(system)
        self.options = options
        self.arguments = dict(arguments or {})
        self.last: Shown | None = None
        """The answer that was shown last."""
        self.left_out = 0
        """How many of the oldest turns are no longer sent, for want of room."""
        self._fitter = Fitter(engine, overflow, self.arguments)
        self._prompt: Prompt | None = None
        """What the last answer follows, if this engine made it."""
        self._used: int | None = 0

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def engine(self) -> TextEngine:
        """What answers. A change keeps the conversation: the new model reads all of it."""
        return self._fitter.engine

    @engine.setter
    def engine(self, engine: TextEngine) -> None:
        self._fitter.engine = engine
        self.take_up(self.conversation.without_ids())

    @property
    def system(self) -> str | None:
        """The system prompt."""
        return self.conversation.system

    @system.setter
    def system(self, text: str | None) -> None:
        self.conversation = replace(self.conversation, system=text)

    @property
    def context(self) -> int:
        """Tokens that the conversation may fill."""
        return self.engine.context

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Questions and answers, oldest first."""
        return self.conversation.turns

    @property
    def can_make_room(self) -> bool:
        """Whether there are turns before the last one that could be left out of the context."""
        sent = len(self.turns) - max(self.left_out, self.conversation.summed)
        return self._fitter.overflow is not Overflow.ERROR and sent > 1

    @property
    def used(self) -> int:
        """Tokens that the conversation fills by now."""
        if self._used is None:
            prompt = self.prompt()
            self._used = 0 if prompt is None else len(prompt.ids)
        return self._used

    def take_up(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation = conversation
        self.last, self.left_out = None, 0
        self._prompt = self._used = None

    def clear(self) -> None:
        """Forget what was said; the system prompt stays."""
        self.take_up(Conversation(self.system))

    def prompt(self) -> Prompt | None:
        """What was said so far as the template writes it; None if nothing was."""
        empty = not self.conversation.messages(self.left_out)
        return None if empty else self._fitter.render(self.conversation, None, self.left_out)

    def prompt_of(self, question: str) -> Prompt:
        """What was said so far with `question` behind it, all of it."""
        return self._fitter.render(self.conversation, question, 0)

    # -- what it does -------------------------------------------------------------------------------

    def ask(self, text: str, screen: Screen) -> Shown:
        """Show the answer to `text` and remember both.

        Raises RequestError if the question cannot be asked; the conversation is then unchanged.
        """
        return self._answer(self.conversation, text, self.options, screen)

    def regenerate(self, screen: Screen, options: GenerateOptions) -> Shown:
        """Answer the last question once more, drawn as `options` say, in place of the last answer."""
        turn = self.last_turn()
        return self._answer(self.conversation.without(1), turn.question, options, screen)

    def ask_instead(self, text: str, screen: Screen) -> Shown:
        """Ask `text` in place of the last question."""
        self.last_turn()
        return self._answer(self.conversation.without(1), text, self.options, screen)

    def resume(self, screen: Screen) -> Shown:
        """Go on with the last answer from the token at which it was cut."""
        turn = self.last_turn()
        if not turn.cut:
            raise UsageError("The last answer ended by itself.", hint="/regen answers once more.")
        begun = turn.ids or self._ids_of(turn.answer)
        fitted = Fitted(self.conversation.without(1), self.left_out, self._prompt) if self._prompt else None
        if fitted is None or len(fitted.prompt.ids) + len(begun) >= self.context:
            fitted = self._fit(self.conversation.without(1), turn.question, screen, begun=len(begun))
        if len(fitted.prompt.ids) + len(begun) >= self.context:
            raise UsageError(
                f"The answer fills the context of {self.context} tokens: it cannot go on.",
                hint="--ctx gives more room, /undo forgets the exchange.",
            )
        resumed = Resumed(self.engine, fitted.prompt.ids, begun, self.options)
        shown = show(resumed, screen, ReasoningSplitter(opening(fitted.prompt.text)), resumed.before)
        return self._remember(turn.question, fitted, replace(shown, ids=(*begun, *shown.ids)))

    def undo(self, count: int) -> int:
        """Forget the last `count` turns; how many there were to forget."""
        count = min(count, len(self.turns))
        self.conversation = self.conversation.without(count)
        self.left_out = min(self.left_out, len(self.turns))
        self.last = self._prompt = self._used = None
        return count

    def compact(self, screen: Screen) -> str:
        """Put a summary in the place of everything that was said; a sentence about it."""
        self.last_turn()
        before = self.prompt()
        self.conversation = sum_up(self.engine, self.conversation, len(self.turns), screen)
        self.left_out, self.last = 0, None
        self._prompt = self._used = None
        after = self.prompt()
        assert before is not None and after is not None, "there is at least a summary"
        return (
            f"{exchanges(len(self.turns))} summed up: {len(before.ids)} tokens became {len(after.ids)}.\n"
            f"{self.conversation.summary}"
        )

    def last_turn(self) -> Turn:
        """Raises UsageError if there is none."""
        if not self.turns:
            raise UsageError("Nothing was said yet.")
        return self.turns[-1]

    # -- inside -------------------------------------------------------------------------------------

    def _answer(self, earlier: Conversation, text: str, options: GenerateOptions, screen: Screen) -> Shown:
        fitted = self._fit(earlier, text, screen)
        generation = self.engine.start(fitted.prompt.ids, options)
        shown = show(generation, screen, ReasoningSplitter(opening(fitted.prompt.text)))
        return self._remember(text, fitted, shown)

    def _fit(self, earlier: Conversation, text: str, screen: Screen, *, begun: int = 0) -> Fitted:
        room = self.options.max_tokens or self.context
        return self._fitter.fitted(earlier, text, self.left_out, room, begun, screen)

    def _ids_of(self, answer: str) -> tuple[int, ...]:
        """Tokens of an answer that another model began."""
        assert self.engine.tokenizer is not None, "it renders conversations"
        return self.engine.tokenizer.encode_parts([0, answer])[1:]  # as text that follows a control token

    def _remember(self, question: str, fitted: Fitted, shown: Shown) -> Shown:
        ids = () if shown.finish is FinishReason.STOP else shown.ids
        turn = Turn(question, shown.text, shown.thought, shown.finish, ids)
        self.conversation = fitted.earlier.with_turn(turn)
        self.left_out, self._prompt, self.last = fitted.first, fitted.prompt, shown
        self._used = shown.figures.used
        return shown
