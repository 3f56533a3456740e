"""TextEngine: the one way to make text, for chat, batch, server and library alike.

It knows a model's tokenizer, template, end tokens and defaults, and stands on an engine that knows only
token ids. Everything that can be wrong with a request is raised before anything is computed.

    with TextEngine.open(Path("model")) as engine:
        prompt = engine.render([{"role": "user", "content": "Hi"}])
        for event in engine.start(prompt.ids, GenerateOptions(max_tokens=50)):
            print(event.text, end="")

Longer than most files: one class is the whole of what front ends call; what it calls stands in the modules beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llmrs_cli.engine import Engine, EngineStats, EngineThread, Request, TokenEvent, open_engine
from llmrs_cli.engine.backends.registry import open_backend
from llmrs_cli.engine.weights.checkpoint import Checkpoint
from llmrs_cli.engine.weights.small_head import open_model
from llmrs_cli.errors import ContextLengthError, EngineFault, LlmrsError, ModelError, RequestError
from llmrs_cli.text.events import ChoiceResult, GenerationResult, LogProb, TextEvent, Usage
from llmrs_cli.text.generation import Generation, TokenEngine
from llmrs_cli.text.grammar import FIELD, GrammarCompiler, GrammarMatcher
from llmrs_cli.text.grammar_trial import GrammarTrial
from llmrs_cli.text.messages import Conversation
from llmrs_cli.text.options import GenerateOptions, SamplingDefaults, model_defaults, resolve
from llmrs_cli.text.prompt import ChatPrompts, Prompt, tried
from llmrs_cli.text.reasoning import OPEN
from llmrs_cli.text.stream import StreamDecoder
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from llmrs_cli.text.tools import ToolStyle, tool_style

__all__ = [
    "ChoiceResult",
    "GenerateOptions",
    "Generation",
    "GenerationResult",
    "LogProb",
    "Prompt",
    "SamplingDefaults",
    "TextEngine",
    "TextEvent",
    "Usage",
]


class TextEngine:
    """A model that answers. `render`, `encode` and `start` may be called from several threads."""

    def __init__(
        self,
        engine: TokenEngine,
        *,
        tokenizer: Tokenizer | None,
        template: ChatTemplate,
        defaults: SamplingDefaults,
        eos_ids: Sequence[int] = (),
        notes: Sequence[str] = (),
        weight_bytes: int = 0,
    ) -> None:
        """Put together by `open`; takes the engine over."""
        self.tokenizer = tokenizer
        """None: the model came without one, so prompts are token ids and answers have no text."""
        self.defaults = defaults
        """What holds where options leave it open; to be shown at start."""
        self.eos_ids = _end_tokens(eos_ids, tokenizer, engine.vocab)
        """Ids that end an answer."""
        self.notes = tuple(notes)
        """What the user should know about the model; for stderr."""
        self._engine = engine
        self._weight_bytes = weight_bytes
        self._template = template
        self._prompts = None if tokenizer is None else ChatPrompts(template, tokenizer)
        self._ids = count()
        self._grammars = None if tokenizer is None else GrammarCompiler(tokenizer, engine.vocab, self.eos_ids)
        self._trial = None if self._grammars is None else GrammarTrial(further=self._grammars.trouble)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        device: str = "auto",
        context: int | None = None,
        rows: int | None = None,
        memory: int | None = None,
        deterministic: bool = False,
        small_head: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> TextEngine:
        """Open the model folder or .gguf file at `path` on a device and load it.

        `context` (tokens), `rows` (requests at once) and `memory` (bytes) default to what fits and suits;
        `deterministic` as in `open_backend`; `small_head` rounds the head to 8 bits;
        `progress` gets bytes loaded and bytes in all. Raises ModelError, UsageError or DoesNotFitError.
        """
        checkpoint = open_model(path, small_head=small_head)

        def open_here() -> Engine:
            return open_engine(
                checkpoint,
                open_backend(device, deterministic=deterministic),
                context=context,
                rows=rows,
                memory=memory,
                progress=progress,
                grammars=grammars_of(checkpoint),
            )

        return cls.over(checkpoint, lambda: EngineThread(open_here))

    @classmethod
    def over(cls, checkpoint: Checkpoint, start: Callable[[], TokenEngine]) -> TextEngine:
        """The text side of `checkpoint` over the engine that `start` opens, once all else is known to be
        usable. Raises ModelError, and what `start` raises."""
        tokenizer = _tokenizer(checkpoint)
        defaults = model_defaults(checkpoint.generation)
        engine = start()
        return cls(
            engine,
            tokenizer=tokenizer,
            template=ChatTemplate(checkpoint.chat_templates, tokenizer.names if tokenizer else {}),
            defaults=defaults,
            eos_ids=checkpoint.spec.eos_ids,
            notes=(*checkpoint.notes, *_context_note(engine, checkpoint)),
            weight_bytes=checkpoint.bytes_a_step,
        )

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may fill together."""
        return self._engine.limits.context

    def bytes_per_token(self, length: float) -> float:
        """Bytes that a step reads to draw one token after `length` others: the weights, and their keys and values."""
        return self._weight_bytes + length * self._engine.limits.token_bytes

    @property
    def can_chat(self) -> bool:
        """Whether `render` has a tokenizer and a template; without them prompts are plain text or ids."""
        return self.tokenizer is not None and self._template.exists

    @property
    def template_source(self) -> str:
        """The chat template, in Jinja's language. Raises ModelError if there is none."""
        return self._template.source()

    def check_grammar(self, grammar: str, param: str = FIELD) -> None:
        """Raise RequestError naming `param` if answers cannot be held to `grammar` (of `text.grammar`).

        To be called before `start` for grammars of strangers; may take a few seconds, and no more than some
        hundred megabytes (`text.grammar_trial`), unless it `knows_grammar`.
        """
        if self._grammars is None:
            raise _no_tokenizer()
        if self._trial is None:
            raise _no_tokenizer()
        self._trial.check(grammar, param)

    def knows_grammar(self, grammar: str) -> bool:
        """Whether `check_grammar` has been through with it, so that it takes no time."""
        return self._trial is None or self._trial.knows(grammar)

    def prepare_grammars(self) -> None:
        """Do now what the first grammar would have to wait for, and whoever comes meanwhile; takes up to a second."""
        if self._grammars is not None:
            self._grammars.prepare()

    @property
    def tool_style(self) -> ToolStyle:
        """How this model writes calls of tools. Raises ModelError if it cannot chat."""
        return tool_style(self._template.source(tools=True))

    @property
    def thinks(self) -> bool:
        """Whether its answers may begin with a thought between tags."""
        return self.tokenizer is not None and OPEN in self.tokenizer.markers

    def stats(self) -> EngineStats:
        """What the engine has done so far."""
        return self._engine.stats()

    # -- prompts ------------------------------------------------------------------------------------

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        continue_last: bool = False,
    ) -> Prompt:
        """A conversation as the model's chat template writes it; special tokens in its content are inert.

        `continue_last`: the last message is the beginning of the answer. Raises RequestError naming what
        is wrong with the messages, ModelError if the model cannot chat.
        """
        if self._prompts is None:
            raise _no_tokenizer()
        chat = self._template.conversation(
            messages, tools=tools, arguments=template_arguments, continue_last=continue_last
        )
        return self._known(self._prompts.build(chat))

    def render_many(
        self, asked: Sequence[tuple[Sequence[Mapping[str, Any]], Mapping[str, Any] | None]]
    ) -> list[Prompt | LlmrsError]:
        """For each pair of messages and arguments of the template what `render` gives or raises; they are
        encoded together, without the GIL."""
        if self._prompts is None:
            return [_no_tokenizer()] * len(asked)
        chats = [
            tried(lambda one: self._template.conversation(one[0], arguments=one[1]), one) for one in asked
        ]
        prompts = iter(self._prompts.build_many([chat for chat in chats if isinstance(chat, Conversation)]))
        found = [next(prompts) if isinstance(chat, Conversation) else chat for chat in chats]
        return [tried(self._known, one) if isinstance(one, Prompt) else one for one in found]

    def _known(self, prompt: Prompt) -> Prompt:
        """The prompt, if the model has all of its ids."""
        last = max(prompt.ids, default=0)
        if last >= self.vocab:
            raise _foreign_tokenizer(last, self.vocab)
        return prompt

    def encode(self, text: str, *, markers: bool = False) -> tuple[int, ...]:
        """Ids of a plain prompt, with the BOS that the tokenizer prescribes.

        `markers`: special tokens written in the text are meant; else they are plain characters.
        """
        if self.tokenizer is None:
            raise _no_tokenizer()
        return self.tokenizer.encode(text, markers=markers)

    # -- answers ------------------------------------------------------------------------------------

    @property
    def vocab(self) -> int:
        """Ids that a prompt may hold: 0 … vocab - 1."""
        return self._engine.vocab

    @property
    def fault(self) -> EngineFault | None:
        """Why no request can be served any more."""
        return self._engine.fault

    @property
    def rows(self) -> int:
        """Requests that run at once."""
        return self._engine.limits.rows

    def start(
        self,
        prompt_ids: Sequence[int],
        options: GenerateOptions | None = None,
        *,
        salt: str = "",
        sink: Callable[[TokenEvent], None] | None = None,
        keeps: bool = True,
    ) -> Generation:
        """Begin answering. Requests share cached prefixes only under an equal `salt`.

        `sink`: where the engine's events go, for a caller that hands them to `Generation.take` itself;
        `keeps`: text and scores are kept for `Generation.result`.

        Raises RequestError for options out of range, ContextLengthError with both numbers if the prompt
        leaves no room for an answer, EngineFault if the engine is broken.
        """
        options = GenerateOptions() if options is None else options
        prompt = tuple(prompt_ids)
        eos_ids = (*self.eos_ids, *self._spelled(options.stop))
        params = resolve(options, self.defaults, eos_ids=eos_ids, room=self._room(prompt))
        if options.stop and self.tokenizer is None:
            raise RequestError("Without a tokenizer there are no stop strings.", param="stop")
        name = f"generation-{next(self._ids)}"
        requests = [
            Request(f"{name}.{choice}", prompt, params, choice, salt, options.grammar)
            for choice in range(options.n)
        ]
        decoders = [self._decoder(options) for _ in requests]
        return Generation(self._engine, requests, decoders, self.tokenizer, sink, keeps=keeps)

    def _spelled(self, stops: Sequence[str]) -> list[int]:
        """Ids of the control tokens among stop strings; they have no text in which to be found."""
        if self.tokenizer is None:
            return []
        ids = [self.tokenizer.markers.get(stop, -1) for stop in stops]
        return [id for id in ids if id in self.tokenizer.special_ids and id < self._engine.vocab]

    def _room(self, prompt: tuple[int, ...]) -> int:
        room = self.context - len(prompt)
        if room < 1:
            raise ContextLengthError(
                f"The prompt has {len(prompt)} tokens; the context holds {self.context}, answer included.",
                limit=self.context,
                prompt=len(prompt),
                hint="Shorten the prompt or give the engine a larger context (--ctx).",
            )
        return room

    def _decoder(self, options: GenerateOptions) -> StreamDecoder | None:
        if self.tokenizer is None:
            return None
        return StreamDecoder(
            self.tokenizer, options.stop, include_stop=options.include_stop, specials=options.specials
        )

    # -- the rest of its life -----------------------------------------------------------------------

    def close(self) -> None:
        """Stop the engine; generations that still run end with "abort"."""
        if self._trial is not None:
            self._trial.close()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def grammars_of(checkpoint: Checkpoint) -> Callable[[str], GrammarMatcher]:
    """What compiles grammars for an engine of `checkpoint`; its tokenizer is read when first needed."""

    @cache
    def compiler() -> GrammarCompiler:
        tokenizer, vocab = _tokenizer(checkpoint), checkpoint.spec.vocab
        if tokenizer is None:
            raise _no_tokenizer()
        return GrammarCompiler(tokenizer, vocab, _end_tokens(checkpoint.spec.eos_ids, tokenizer, vocab))

    return lambda grammar: compiler().compile(grammar)


def _context_note(engine: TokenEngine, checkpoint: Checkpoint) -> list[str]:
    limits = engine.limits
    if not limits.cut_from:
        return []
    return [
        f"Memory allows a context of {limits.context} tokens rather than {limits.cut_from};"
        f" the model itself knows {checkpoint.spec.max_context}."
    ]


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    if checkpoint.tokenizer_json is None:
        return None
    return Tokenizer(checkpoint.tokenizer_json, checkpoint.tokenizer_config)


def _no_tokenizer() -> ModelError:
    return ModelError("This model has no tokenizer.", hint="Give it prompts as token ids.")


def _foreign_tokenizer(id: int, vocab: int) -> ModelError:
    return ModelError(
        f"The model's tokenizer gives id {id}; its embedding has ids from 0 to {vocab - 1}.",
        hint="Use the tokenizer that belongs to these weights.",
    )


def _end_tokens(configured: Sequence[int], tokenizer: Tokenizer | None, vocab: int) -> tuple[int, ...]:
    """End ids of the configurations, and the tokenizer's; ids that the model cannot draw are left out."""
    own = tokenizer.eos_id if tokenizer is not None else None
    ids = [*configured, *([] if own is None else [own])]
    return tuple(id for id in dict.fromkeys(ids) if 0 <= id < vocab)
