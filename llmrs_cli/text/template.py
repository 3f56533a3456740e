"""Chat templates: which one a model has, and a conversation rendered by it as Hugging Face would.

The only caller of Jinja (through `sandbox`). Nothing is hard-coded for a family of models: a model
without a template cannot chat. Renders text only; `prompt` turns it into ids with inert content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from llmrs_cli.errors import ModelError, RequestError, quoted
from llmrs_cli.text.messages import Conversation, conversation
from llmrs_cli.text.sandbox import BudgetExceeded, MeteredEnvironment

MAX_OUTPUT = 4 * 1024 * 1024
OUTPUT_PER_INPUT = 4
"""Characters a prompt may have: so many, plus so many per character of the conversation."""
MAX_MESSAGE = 500
"""Characters of a template's own message that are passed on."""


class ChatTemplate:
    """A model's chat templates by name, compiled when first used. Safe to share between threads."""

    def __init__(
        self,
        sources: Mapping[str, str],
        token_names: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`sources`: name → Jinja source, usually just "default"; `token_names`: bos_token → its text."""
        self._sources = dict(sources)
        self._token_names = dict(token_names or {})
        self._environment = MeteredEnvironment(
            {"raise_exception": _raise_exception, "strftime_now": lambda form: english_time(now(), form)}
        )
        self._compiled: dict[str, Template] = {}

    @property
    def exists(self) -> bool:
        """Whether the model came with a template at all."""
        return bool(self._sources)

    def source(self, *, tools: bool = False) -> str:
        """The template for a conversation with or without tools. ModelError if there is none."""
        if not self._sources:
            raise ModelError(
                "This model has no chat template.",
                hint="Give it plain prompts instead of messages, or use its instruct variant.",
            )
        for name in ("tool_use", "default") if tools else ("default",):
            if name in self._sources:
                return self._sources[name]
        if len(self._sources) == 1:
            return next(iter(self._sources.values()))
        raise ModelError(
            f"None of this model's chat templates is the default: {quoted(list(self._sources))}."
        )

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        continue_last: bool = False,
    ) -> Conversation:
        """Checked and in the spelling of this template. RequestError names the field that is wrong."""
        source = self.source(tools=bool(tools))
        return conversation(
            messages, source=source, tools=tools, arguments=arguments, continue_last=continue_last
        )

    def render(self, chat: Conversation) -> str:
        """The prompt's text, ending where the answer begins.

        RequestError if the template refuses the conversation, with its own words; ModelError if the
        template itself is at fault.
        """
        source = self.source(tools=bool(chat.tools))
        template = self._compiled.get(source) or self._compile(source)
        variables = {
            "messages": list(chat.messages),
            "tools": list(chat.tools) or None,
            "documents": None,
            "add_generation_prompt": not chat.continue_last,
            **self._token_names,
            **(chat.arguments or {}),
        }
        text = self._run(template, variables)
        if len(text) > MAX_OUTPUT + OUTPUT_PER_INPUT * len(repr(chat.messages)):
            raise ModelError("The model's chat template makes a prompt that is far too long.")
        return _cut_after(text, chat.messages[-1]["content"]) if chat.continue_last else text

    def _compile(self, source: str) -> Template:
        try:
            template = self._environment.prepare(source)
        except TemplateSyntaxError as error:
            message = _shown(error.message or "")
            raise ModelError(
                f"The model's chat template has an error in line {error.lineno}: {message}"
            ) from None
        except (TemplateError, SyntaxError, RecursionError, MemoryError) as error:
            raise ModelError(f"The model's chat template cannot be used: {_shown(str(error))}") from None
        self._compiled[source] = template
        return template

    def _run(self, template: Template, variables: dict[str, Any]) -> str:
        try:
            return self._environment.render(template, variables)
        except TemplateRefusal as refusal:
            raise RequestError(
                f"The model's chat template refuses these messages: {_shown(str(refusal))}",
                code="chat_template",
                param="messages",
            ) from None
        except (SecurityError, BudgetExceeded, RecursionError, MemoryError, OverflowError) as error:
            raise ModelError(
                f"The model's chat template does what templates may not do: {_shown(str(error))}"
            ) from None
        except Exception as error:  # whatever an operation on a message of the wrong shape raises
            raise RequestError(
                f"The model's chat template fails on these messages: {_shown(str(error))}",
                code="chat_template",
                param="messages",
            ) from error


class TemplateRefusal(TemplateError):
    """A template called raise_exception."""


def _raise_exception(message: Any = "") -> None:
    raise TemplateRefusal(str(message))


def _shown(message: str) -> str:
    """A template's words as they may stand in a sentence of ours: escaped, shortened, with a full stop."""
    escaped = message.encode("unicode_escape").decode("ascii") if not message.isprintable() else message
    if len(escaped) > MAX_MESSAGE:
        escaped = escaped[: MAX_MESSAGE - 1] + "…"
    return escaped if escaped.endswith((".", "!", "?", "…")) else f"{escaped}."


def _cut_after(text: str, content: str) -> str:
    """`text` up to the end of the last message, with as much of its trailing blanks as the template kept."""
    stripped = content.strip()
    start = text.rfind(stripped)
    if start < 0:
        raise RequestError(
            "The model's chat template does not show the last message, so it cannot be continued.",
            param="messages",
        )
    kept = content.lstrip()
    return text[: start + len(kept)] if text.startswith(kept, start) else text[: start + len(stripped)]


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


def english_time(moment: datetime, form: str) -> str:
    """strftime with English names and C-locale forms whatever the locale of the process is.

    Widths (`%9d`), which could ask for a gigabyte of blanks, and unknown codes stay as they are.
    """
    named = {
        "a": DAYS[moment.weekday()][:3],
        "A": DAYS[moment.weekday()],
        "b": MONTHS[moment.month - 1][:3],
        "h": MONTHS[moment.month - 1][:3],
        "B": MONTHS[moment.month - 1],
        "p": "AM" if moment.hour < 12 else "PM",
        "P": "am" if moment.hour < 12 else "pm",
        "%": "%",
    }
    combined = {
        "c": "%a %b %e %H:%M:%S %Y",
        "x": "%m/%d/%y",
        "X": "%H:%M:%S",
        "D": "%m/%d/%y",
        "r": "%I:%M:%S %p",
    }

    def one(match: re.Match[str]) -> str:
        flag, code = match[1], match[2]
        if code in combined:
            return english_time(moment, combined[code])
        return named[code] if code in named else moment.strftime(f"%{flag}{code}")

    return re.sub(r"%([-_0]?)([a-zA-Z%])", one, form[:200])
