"""Text to token ids and back, over the `tokenizers` library and a checkpoint's tokenizer.json.

Special and other added tokens ("markers") in text are *inert* unless a caller asks for them: `<|im_end|>`
typed by a user is encoded as plain characters. Templates get theirs through `prompt`. Decoding goes
through `pieces` and `stream`, so that one-shot and streamed text are the same by construction.

A checkpoint may have no tokenizer; then there is no `Tokenizer` (None), and prompts are token ids.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tokenizers

from llmrs_cli.errors import LlmrsError, ModelError, RequestError, quoted
from llmrs_cli.text.pieces import piece_rule

MAX_TEXT = 16 * 1024 * 1024
"""Bytes of one text; the library cannot be interrupted while it works (about 1 s per MiB)."""
LONG_TEXT = 4096
"""Characters from which `encode`, which holds the GIL all the while, is avoided (about 5 ms)."""
TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A loaded tokenizer. Safe to use from several threads; `encode_batch` does not hold the GIL."""

    def __init__(self, data: bytes, config: Mapping[str, Any] | None = None) -> None:
        """`data` is the content of tokenizer.json, `config` that of tokenizer_config.json.

        Raises ModelError if the library cannot read it or its decoder is of a kind we do not know.
        """
        with _library_errors(ModelError("The model's tokenizer.json is damaged or of an unknown kind.")):
            self._full = tokenizers.Tokenizer.from_buffer(data)
            self._full.no_truncation()
            self._full.no_padding()
            self._plain = _without_markers(self._full)
            self._inner = _without_prefix(self._plain)
            tokens = self._full.get_added_tokens_decoder()
            added = {id: token for id, token in tokens.items() if token.content}
            rule = piece_rule(json.loads(self._full.decoder.__getstate__()) if self._full.decoder else None)
            _check_ids(self._full.get_vocab())
        self._rule = rule
        self.strips_blank = rule.strips_blank
        self.markers: dict[str, int] = {token.content: id for id, token in added.items()}
        """Added tokens, text → id: matched as a whole where a template writes them."""
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        """Control tokens: not part of a reply's text."""
        self._marker_text = {id: token.content for id, token in added.items()}
        self._around = _prescribed(self._full)
        self._marker_pattern = _marker_pattern(added)
        self._bytes: dict[int, bytes] = {}
        self.names = _token_names(config or {})
        """bos_token, eos_token … → their text, as far as the configuration has them."""

    @property
    def eos_id(self) -> int | None:
        """The end token of tokenizer_config.json."""
        return self.id_of(self.names["eos_token"]) if "eos_token" in self.names else None

    @property
    def prefix(self) -> tuple[int, ...]:
        """What stands before a plain text, such as a BOS."""
        return self._around[0]

    def id_of(self, text: str) -> int | None:
        """The id of a vocabulary entry or marker."""
        id: int | None = self._full.token_to_id(text)
        return id

    # -- text to ids --------------------------------------------------------------------------------

    def encode(self, text: str, *, bos: bool = True, markers: bool = False) -> tuple[int, ...]:
        """Ids of a text. RequestError if it is not valid Unicode, too long, or beyond the library.

        `bos`: put the tokens around it that the tokenizer prescribes for a plain text (often a BOS).
        `markers`: `<|im_end|>` and the like in the text become their ids; else they are plain characters.
        """
        check_text(text)
        with _library_errors(_cannot_encode()):
            ids = tuple(_encode(self._full, text)) if markers else self._inert(self._plain, text)
        return self._wrapped(ids) if bos else ids

    def encode_batch(
        self, texts: Sequence[str], *, bos: bool = True, markers: bool = False
    ) -> list[tuple[int, ...]]:
        """`encode` of several texts at once, on all cores and without the GIL."""
        for text in texts:
            check_text(text)
        encoder = self._full if markers else self._plain
        with _library_errors(_cannot_encode()):
            found = [e.ids for e in encoder.encode_batch_fast(list(texts), add_special_tokens=False)]
            if markers:
                batch = [tuple(ids) for ids in found]
            else:
                batch = [self._unforged(encoder, text, ids) for text, ids in zip(texts, found, strict=True)]
        return [self._wrapped(ids) for ids in batch] if bos else batch

    def encode_parts(self, parts: Sequence[str | int]) -> tuple[int, ...]:
        """Ids of a text that was split at its markers: ids stand for themselves, strings are inert."""
        ids: list[int] = []
        with _library_errors(_cannot_encode()):
            for position, part in enumerate(parts):
                if isinstance(part, int):
                    ids.append(part)
                elif part:
                    ids += self._inert(self._inner if position else self._plain, part)
        return tuple(ids)

    def split(self, text: str) -> list[str | int]:
        """Cut `text` at every marker in it; a marker takes the blanks beside it that its entry claims."""
        parts: list[str | int] = []
        start = 0
        for match in self._marker_pattern.finditer(text) if self._marker_pattern else ():
            assert match.lastindex is not None
            parts += [text[start : match.start()], self.markers[match[match.lastindex]]]
            start = match.end()
        return [*parts, text[start:]]

    def _inert(self, encoder: tokenizers.Tokenizer, text: str) -> tuple[int, ...]:
        return self._unforged(encoder, text, _encode(encoder, text))

    def _unforged(self, encoder: tokenizers.Tokenizer, text: str, ids: Sequence[int]) -> tuple[int, ...]:
        """`ids`, unless the merges of a vocabulary made a marker of plain text: then cut that text apart."""
        forged = {self._marker_text[id] for id in ids if id in self._marker_text}
        if not forged:
            return tuple(ids)
        pieces = [text]
        for marker in forged:
            pieces = [part for piece in pieces for part in _cut_inside(piece, marker)]
        first, *others = pieces
        encoded = [encoder.encode(first, add_special_tokens=False).ids]
        encoded += [self._inner.encode(piece, add_special_tokens=False).ids for piece in others]
        apart = tuple(id for ids in encoded for id in ids)
        if not self._marker_text.keys().isdisjoint(apart):
            raise RequestError("The text spells a control token in disguise.", code="invalid_text")
        return apart

    def _wrapped(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        before, after = self._around
        return ids if before and ids[: len(before)] == before else before + ids + after

    # -- ids to text --------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """The text of `ids`; broken UTF-8 becomes U+FFFD, ids without a token become nothing."""
        text = b"".join(self.token_bytes(id, specials=specials) for id in ids).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_blank else text

    def token_bytes(self, id: int, *, specials: bool = True) -> bytes:
        """The bytes that a token stands for: none if no token has this id, or a control token is unwanted."""
        if not specials and id in self.special_ids:
            return b""
        known = self._bytes.get(id)
        if known is None:
            known = self._bytes[id] = self._read_bytes(id)
        return known

    def _read_bytes(self, id: int) -> bytes:
        if id in self._marker_text:
            return self._marker_text[id].encode()
        entry = self._full.id_to_token(id) if 0 <= id < 2**32 else None
        return b"" if entry is None else self._rule.to_bytes(entry)


def _encode(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    """Ids of `text`; a long one goes the way that lets other threads run meanwhile."""
    if len(text) < LONG_TEXT:
        ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
    else:
        ids = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def check_text(text: str, field: str | None = None) -> None:
    """Raise RequestError if `text` cannot be UTF-8 or is too long; `field` says where it stood."""
    where = f" in {field}" if field else ""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise RequestError(
            f"The text{where} is not valid Unicode: a lone surrogate at character {error.start}.",
            code="invalid_text",
            param=field,
        ) from None
    if size > MAX_TEXT:
        raise RequestError(
            f"The text{where} has {size} bytes; at most {MAX_TEXT} are taken.",
            code="text_too_long",
            param=field,
        )


@contextmanager
def _library_errors(instead: LlmrsError) -> Iterator[None]:
    """Raise `instead` for whatever the library throws, its Rust panics (a BaseException) included."""
    try:
        yield
    except LlmrsError:
        raise
    except Exception as error:
        raise instead from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise instead from None


def _cannot_encode() -> RequestError:
    return RequestError("The model's tokenizer cannot encode this text.", code="invalid_text")


def _without_markers(full: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same model and rules (shared, not copied) with no added tokens to match."""
    plain = tokenizers.Tokenizer(full.model)
    plain.normalizer = full.normalizer
    plain.pre_tokenizer = full.pre_tokenizer
    return plain


def _without_prefix(plain: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The encoder of text that follows a marker: a blank that marks the start of the text is not added."""
    pre = plain.pre_tokenizer
    if not isinstance(pre, tokenizers.pre_tokenizers.Metaspace) or pre.prepend_scheme != "first":
        return plain
    inner = tokenizers.Tokenizer(plain.model)
    inner.normalizer = plain.normalizer
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        replacement=pre.replacement, prepend_scheme="never", split=pre.split
    )
    return inner


def _check_ids(vocab: Mapping[str, int]) -> None:
    """ModelError if two entries have one id: either could be meant, so decoding would guess."""
    if len(set(vocab.values())) < len(vocab):
        id, _ = Counter(vocab.values()).most_common(1)[0]
        first, second = [token for token, other in vocab.items() if other == id][:2]
        raise ModelError(
            f"The model's tokenizer.json gives id {id} to both {quoted(first)} and {quoted(second)}."
        )


def _prescribed(full: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the post-processor puts before and after a plain text."""
    bare = full.encode("a", add_special_tokens=False).ids
    ids = full.encode("a").ids
    for start in range(len(ids) - len(bare) + 1):
        if ids[start : start + len(bare)] == bare:
            return tuple(ids[:start]), tuple(ids[start + len(bare) :])
    return (), ()


def _cut_inside(text: str, marker: str) -> list[str]:
    """Cut `text` after the first character of each `marker` in it."""
    head, tail = marker[:1], marker[1:]
    parts = text.split(marker)
    starts = ["", *[tail] * (len(parts) - 1)]
    ends = [*[head] * (len(parts) - 1), ""]
    return [start + part + end for start, part, end in zip(starts, parts, ends, strict=True)]


def _marker_pattern(added: Mapping[int, tokenizers.AddedToken]) -> re.Pattern[str] | None:
    """Alternation of the markers, longest first, with what each entry says of its surroundings."""

    def one(token: tokenizers.AddedToken) -> str:
        pattern = f"({re.escape(token.content)})"
        if token.single_word:
            pattern = rf"(?<!\w){pattern}(?!\w)"
        return (r"\s*" if token.lstrip else "") + pattern + (r"\s*" if token.rstrip else "")

    tokens = sorted(added.values(), key=lambda token: len(token.content), reverse=True)
    return re.compile("|".join(map(one, tokens))) if tokens else None


def _token_names(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and its kind; an entry is a string or, in older files, an object with the content."""
    names = {}
    for name in TOKEN_NAMES:
        value = config.get(name)
        value = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(value, str):
            names[name] = value
    return names
