"""A conversation with everything around it: the session, its name and place on disk, files that wait."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from llmrs_cli.chat.answer import Figures, Shown
from llmrs_cli.chat.attach import Attachments
from llmrs_cli.chat.desk import Desk
from llmrs_cli.chat.screen import Screen
from llmrs_cli.chat.session import Session
from llmrs_cli.chat.store import SessionStore
from llmrs_cli.engine.types import FinishReason
from llmrs_cli.errors import LlmrsError, UsageError


@dataclass(slots=True)
class Talk:
    """What slash commands act on."""

    session: Session
    screen: Screen
    desk: Desk
    model: str
    """Name of the model that answers."""
    store: SessionStore
    name: str | None
    """Of the saved session; None: nothing is saved."""
    attached: Attachments = field(default_factory=Attachments)
    show_stats: bool = True
    bandwidth: float | None = None
    """Bytes a second of the memory that the model is read from; None: not measured."""

    def finish(self, shown: Shown) -> None:
        """After an answer: say how it ended, show its figures, save."""
        if shown.finish is FinishReason.ABORT:
            self.screen.say("[stopped; the answer so far is kept, /continue goes on]")
        elif shown.finish is FinishReason.LENGTH:
            context = self.session.context
            full = shown.figures.used >= context
            reason = f"the context of {context} tokens is full" if full else "the token limit"
            goes_on = not full or self.session.can_make_room
            further = "/continue goes on." if goes_on else "--ctx gives more room."
            self.screen.warn(f"The answer was cut: {reason}. {further}")
        if self.show_stats:
            self.screen.stats(self.line(shown.figures))
        self.save()

    def line(self, figures: Figures) -> str:
        """The figures of an answer in one line."""
        return figures.line(self.session.context, self.share(figures))

    def share(self, figures: Figures) -> float | None:
        """Bytes read for the answer's tokens over what the memory can give in that time; None: not known."""
        read = self.session.engine.bytes_per_token(figures.mean_length)
        if figures.rate is None or self.bandwidth is None or not read:
            return None
        return figures.rate * read / self.bandwidth

    def save(self) -> None:
        """Write the session; a disk that does not take it is told once, and the conversation goes on."""
        if self.name is None or not self.session.turns:
            return
        try:
            self.store.save(self.name, self.model, self.session.conversation)
        except LlmrsError as error:
            self.name = None
            self.screen.warn(f"{error} The conversation is not saved from now on; /save tries again.")

    def begin_anew(self) -> None:
        """A new conversation under a new name; the old one stays saved."""
        self.session.clear()
        if self.name is not None:
            self.name = self.store.fresh_name()

    def rename(self, name: str) -> None:
        """Save under another name from now on. Raises UsageError if it is taken."""
        if self.name is None:
            if self.store.exists(name):
                raise UsageError(f"There is a session {name!r} already.", hint="Choose another name.")
        elif self.name != name:
            self.store.rename(self.name, name)
        self.name = name
        self.save()

    def load(self, name: str) -> int:
        """Go on with a saved session; how many turns it has. It is saved further if this one was.

        Raises what `SessionStore.load` raises.
        """
        loaded = self.store.load(name)
        same = loaded.model == self.model
        self.session.take_up(loaded.conversation if same else loaded.conversation.without_ids())
        self.name = name if self.name is not None else None
        return len(loaded.conversation.turns)

    def set_option(self, **changes: object) -> None:
        """Draw the next answers otherwise."""
        self.session.options = replace(self.session.options, **changes)  # type: ignore[arg-type]
