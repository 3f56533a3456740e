"""Forms that an answer can be held to: what a client asks for → a grammar, and a grammar → a matcher.

A grammar is a text in the words of llguidance, so it can travel to an engine in another process; it is
tried where it is made (`grammar_trial`) and compiled again where it is followed. Whatever cannot be
followed to the letter is refused: nothing is ever answered without the form that was asked for. Compiling
runs without the GIL.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from llmrs_cli.errors import RequestError
from llmrs_cli.text.grammar_child import COMPLEX, begins, compiled, fault_of
from llmrs_cli.text.tokenizer import Tokenizer
from llmrs_cli.text.tools import CLOSE, OPEN, ToolStyle

MAX_SCHEMA, MAX_SCHEMA_DEPTH, MAX_ENUM = 64 * 1024, 32, 2000
MAX_REGEX = 2 * 1024
"""Characters."""
MAX_CACHED = 16
"""Compiled grammars that are kept; the states of one may grow to some 8 MB."""
BLANKS: Any = {"whitespace_pattern": r"[ \n]{0,8}"}
"""Between the tokens of JSON; without a bound a model can go on for ever there."""
FIELD = "response_format"
Words = NDArray[np.uint32]
"""A bit for each token: set if it may come next."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer; may be shared between threads."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos_ids: Sequence[int]) -> None:
        """`vocab` counts the ids that can be drawn; those without a token are never allowed."""
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._eos_ids = tuple(eos_ids)
        self._tokens: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[str, GrammarMatcher] = OrderedDict()
        """Each at its beginning."""
        self._lock = threading.Lock()

    def compile(self, grammar: str, param: str = FIELD) -> GrammarMatcher:
        """A matcher at the beginning of `grammar`. RequestError naming `param` says why it cannot be followed."""
        with self._lock:
            start = self._compiled.get(grammar)
        if start is None:
            start = self._start(grammar, param)
        with self._lock:
            self._compiled[grammar] = start
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
            return start.copy()

    def trouble(self, grammar: str) -> str:
        """Why answers cannot be held to a grammar that has passed its trial, a sentence; "" if they can be. With a
        model's tokens it may cost more than with bytes."""
        matcher, fault = self._try(grammar)
        return fault if matcher is None else fault or begins(matcher, self._eos_ids)

    def prepare(self) -> None:
        """Do now what the first grammar would have to wait for, and half a second of it everybody: it keeps the GIL."""
        if self._eos_ids:
            self._vocabulary()

    def _start(self, grammar: str, param: str) -> GrammarMatcher:
        matcher, fault = self._try(grammar)
        if fault or matcher is None:
            raise refusal(fault, param)
        try:
            return GrammarMatcher(matcher, self._vocab)
        except ValueError:
            raise refusal(COMPLEX, param) from None

    def _try(self, grammar: str) -> tuple[llguidance.LLMatcher | None, str]:
        """A matcher, and why it cannot be used, if so."""
        if not self._eos_ids:
            return None, "This model has no end token, so its answers cannot be held to a form."
        matcher = compiled(self._vocabulary(), grammar)
        return matcher, fault_of(matcher)

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokens is None:
                wrapper = llguidance.TokenizerWrapper(
                    _Vocabulary(self._tokenizer, self._vocab, self._eos_ids)
                )
                self._tokens = llguidance.LLTokenizer(
                    wrapper, n_vocab=self._vocab, eos_token=[*self._eos_ids]
                )
            return self._tokens


class GrammarMatcher:
    """One answer in the middle of its grammar; implements `engine.masks.Matcher`."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab: int, first: Words | None = None) -> None:
        """`first`: the mask of the first token, computed here if it is not given."""
        self._matcher = matcher
        self._vocab = vocab
        self._first: Words | None = self._computed() if first is None else first
        """Until a token has come."""

    def copy(self) -> GrammarMatcher:
        """Another answer, at the same place, which is the beginning."""
        return GrammarMatcher(self._matcher.deep_copy(), self._vocab, self._first)

    def advance(self, token: int) -> None:
        """Take in a token. Raises ValueError if the grammar does not allow it."""
        self._first = None
        if not self._matcher.consume_token(token):
            raise ValueError(f"token {token} breaks the grammar")

    def mask(self) -> Words:
        """(ceil(V/32),): the tokens that may follow. Raises ValueError if the grammar has become too complex."""
        return self._computed() if self._first is None else self._first

    def _computed(self) -> Words:
        data = b"" if self._matcher.is_error() else self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ValueError("the grammar cannot be followed further")
        words = np.frombuffer(data, np.uint32)
        return words[: -(-self._vocab // 32)]


class _Vocabulary:
    """What llguidance wants to know of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos_ids: Sequence[int]) -> None:
        self.eos_token_id = eos_ids[0]
        self.tokens = [tokenizer.token_bytes(id) for id in range(vocab)]
        self.special_token_ids = sorted(id for id in {*tokenizer.special_ids, *eos_ids} if id < vocab)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text, bos=False)]


def refusal(message: str, param: str = FIELD) -> RequestError:
    """The error for a form that cannot be followed."""
    return RequestError(message, code="invalid_grammar", param=param)


# -- forms ---------------------------------------------------------------------------------------------


def json_object() -> str:
    """Any JSON object."""
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any], param: str = FIELD) -> str:
    """JSON that conforms to `schema`. RequestError if it is too large; what it holds is seen when compiled."""
    _check_size(schema, param)
    grammar: str = llguidance.LLMatcher.grammar_from_json_schema(dict(schema), overrides=BLANKS)
    return grammar


def regex(pattern: str, param: str = FIELD) -> str:
    """Text that matches a regular expression as a whole; it is never run by a backtracking engine."""
    if not 0 < len(pattern) <= MAX_REGEX:
        raise refusal(f"A pattern must have 1 to {MAX_REGEX} characters.", param)
    grammar: str = llguidance.LLMatcher.grammar_from_regex(pattern)
    return grammar


def lark(source: str, param: str = FIELD) -> str:
    """Text that a grammar in Lark's notation produces."""
    if not 0 < len(source) <= MAX_SCHEMA:
        raise refusal(f"A grammar must have 1 to {MAX_SCHEMA} characters.", param)
    grammar: str = llguidance.LLMatcher.grammar_from_lark(source)
    return grammar


def one_of(texts: Sequence[str], param: str = FIELD) -> str:
    """One of `texts`, which are not empty."""
    return lark(f"start: {' | '.join(map(json.dumps, texts))}", param)


def tool_calls(style: ToolStyle, tools: Sequence[Mapping[str, Any]], *, several: bool) -> str:
    """Calls of `tools` (OpenAI's objects) and nothing else, as a model of this style writes them."""
    argument = "arguments" if style is ToolStyle.TAGGED else "parameters"
    calls = [_call_schema(tool["function"], argument) for tool in tools]
    _check_size(calls, "tools")
    schema = {"anyOf": calls, "x-guidance": BLANKS} if len(calls) > 1 else {**calls[0], "x-guidance": BLANKS}
    if style is ToolStyle.BARE:
        return lark(f"start: call\ncall: %json {json.dumps(schema)}")
    more = r' ("\n" one)*' if several else ""
    return lark(
        f"start: one{more}\n"
        f'one: {json.dumps(OPEN)} "\\n" call "\\n" {json.dumps(CLOSE)}\n'
        f"call: %json {json.dumps(schema)}"
    )


def strict_calls(style: ToolStyle, tools: Sequence[Mapping[str, Any]]) -> str:
    """Any answer, in which calls of `strict` tools have arguments of their schema, and no unknown tool is called.

    A call begins where a parser (`text.tools`) would see one: at a tag, or with a brace at the beginning.
    """
    argument = "arguments" if style is ToolStyle.TAGGED else "parameters"
    functions = [tool["function"] for tool in tools]
    calls = [
        _call_schema(function if function.get("strict") else {"name": function["name"]}, argument)
        for function in functions
    ]
    _check_size(calls, "tools")
    call = f"call: %json {json.dumps({'anyOf': calls, 'x-guidance': BLANKS})}"
    if style is ToolStyle.BARE:
        return lark(f"start: call | OTHER\nOTHER: /([ \\n]*[^ \\n{{](.|\\n)*)?/\n{call}")
    return lark(
        f"start: one* ANY\nopen[lazy]: ANY {json.dumps(OPEN)}\nANY: /(.|\\n)*/\n"
        f"one: open BLANK call BLANK {json.dumps(CLOSE)}\nBLANK: /[ \\n]{{0,8}}/\n{call}"
    )


def _call_schema(function: Mapping[str, Any], argument: str) -> dict[str, Any]:
    parameters = function.get("parameters") or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, argument: {"type": "object", **parameters}},
        "required": ["name", argument],
        "additionalProperties": False,
    }


def _check_size(schema: Any, param: str) -> None:
    if len(json.dumps(schema)) > MAX_SCHEMA:
        raise refusal(f"A schema may have at most {MAX_SCHEMA} characters.", param)
    _check_part(schema, param, 0)


def _check_part(part: Any, param: str, depth: int) -> None:
    if depth > MAX_SCHEMA_DEPTH:
        raise refusal(f"A schema may be nested at most {MAX_SCHEMA_DEPTH} deep.", param)
    if isinstance(part, Mapping):
        choices = part.get("enum")
        if isinstance(choices, list) and len(choices) > MAX_ENUM:
            raise refusal(f"An enum may have at most {MAX_ENUM} values.", param)
        if "x-guidance" in part:  # switches of the compiler, some of which would let keywords pass unseen
            raise refusal("x-guidance is not supported.", param)
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            _check_part(item, param, depth + 1)
