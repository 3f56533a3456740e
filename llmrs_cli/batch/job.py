"""What holds for every row of a run, and what a run has come to so far; plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from llmrs_cli.batch.delivery import Record
from llmrs_cli.batch.records import Ask, Row
from llmrs_cli.batch.results import Writer

if TYPE_CHECKING:
    from llmrs_cli.text.forms import AnswerForm
    from llmrs_cli.text.generate import GenerateOptions


@dataclass(frozen=True, slots=True)
class Job:
    """How rows are asked and their answers written."""

    options: GenerateOptions
    """Where a row says nothing itself."""
    seed: int
    """Rows without a seed of their own draw from this and their index, so order changes nothing."""
    writer: Writer
    system: str | None = None
    """Before the messages of rows that have none of their own."""
    form: AnswerForm | None = None
    """What answers are held to where a row says nothing itself."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template, where a row says nothing itself."""

    def options_for(self, index: int, ask: Ask) -> GenerateOptions:
        """What holds for one row: its own options win."""
        form = self.form_of(ask)
        given: dict[str, Any] = {"seed": row_seed(self.seed, index), **ask.options}
        for name in ("chat_template_kwargs", "form"):
            given.pop(name, None)
        return replace(self.options, grammar="" if form is None else form.grammar, **given)

    def form_of(self, ask: Ask) -> AnswerForm | None:
        """What the answer to a row is held to."""
        form: AnswerForm | None = ask.options.get("form", self.form)
        return form if form is not None and form.grammar else None

    def is_json(self, row: Row) -> bool:
        """Whether an answer to the row is JSON, if it is complete."""
        form = self.form_of(row.ask) if isinstance(row.ask, Ask) else None
        return form is not None and form.is_json

    def template_arguments(self, ask: Ask) -> dict[str, Any]:
        """Variables for the chat template; a thought has no place in a form, unless somebody says so."""
        thoughts = {"enable_thinking": False} if self.form_of(ask) else {}
        return {**thoughts, **self.arguments, **ask.options.get("chat_template_kwargs", {})}


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows that are done, and their tokens."""

    rows: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    merged: int = 0
    """Rows that took the answer of an equal one."""

    def plus(self, record: Record, *, merged: bool = False) -> Counts:
        """These counts and one more row."""
        return Counts(
            self.rows + 1,
            self.failed + record.failed,
            self.prompt_tokens + record.prompt_tokens,
            self.completion_tokens + record.completion_tokens,
            self.merged + merged,
        )


def row_seed(job_seed: int, index: int) -> int:
    """The seed of a row that brings none: the same whatever was run before it or beside it."""
    digest = blake2b(f"{job_seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
