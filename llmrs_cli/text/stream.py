"""A reply as it grows: token ids in, finished text out.

Contract: the pieces of `push`, then `finish`, joined, are `Tokenizer.decode` of all ids up to the first
stop string. Held back is only an incomplete UTF-8 character and text that a stop string may still claim.
Time is linear in the text: each character is searched once, beside a tail shorter than a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from llmrs_cli.errors import RequestError
from llmrs_cli.text.tokenizer import Tokenizer

MAX_STOPS = 16
MAX_STOP_LENGTH = 256


def check_stops(stops: Sequence[str]) -> None:
    """Raise RequestError if there are too many stop strings, or one is empty or too long."""
    if len(stops) > MAX_STOPS:
        raise RequestError(f"At most {MAX_STOPS} stop strings are taken, not {len(stops)}.", param="stop")
    if not all(0 < len(stop) <= MAX_STOP_LENGTH for stop in stops):
        raise RequestError(f"A stop string must have 1 to {MAX_STOP_LENGTH} characters.", param="stop")


class StopFinder:
    """Cuts a growing text at the first stop string that completes; where two complete, at the longer."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        check_stops(stops)
        self._stops = tuple(stops)
        self.looks = bool(stops)
        """Whether there is anything to find."""
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """What may be shown after `text` arrived; nothing once matched.

        With `may_stop` false a stop string that ends inside `text` is text like any other.
        """
        if self.matched is not None:
            return ""
        text = self._held + text
        found = self._first(text) if may_stop else None
        if found is None:
            cut = len(text) - self._pending(text)
            shown, self._held = text[:cut], text[cut:]
            return shown
        end, self.matched = found
        self._held = ""
        return text[:end] if self._include else text[: end - len(self.matched)]

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        """(end, stop) of the match that ends first, the longest of those."""
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if not ends:
            return None
        end, _, stop = min(ends)
        return end, stop

    def _pending(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops if len(stop) > length):
                return length
        return 0


class StreamDecoder:
    """One reply. `push` ids as they come; `finish` once, at the end."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        specials: bool = False,
    ) -> None:
        """`specials`: control tokens are part of the text."""
        self._tokenizer = tokenizer
        self._specials = specials
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_blank
        self._finder = StopFinder(stops, include=include_stop)

    @property
    def looks_for_stops(self) -> bool:
        """Whether a stop string may end the text."""
        return self._finder.looks

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did: further ids are ignored."""
        return self._finder.matched

    def push(self, ids: Iterable[int], *, may_stop: bool = True) -> str:
        """Text that is certain after these ids; `may_stop` false: no stop string may end here yet."""
        data = b"".join([self._tokenizer.token_bytes(id, specials=self._specials) for id in ids])
        text = self._text(data)
        return self._finder.push(text, may_stop=may_stop) if self._finder.looks else text

    def finish(self) -> str:
        """What was held back: an unfinished character as U+FFFD, the beginning of a stop string as it is."""
        if self.matched is not None:
            return ""
        text = self._finder.push(self._text(b"", final=True), may_stop=False)
        return text + self._finder.finish()

    def _text(self, data: bytes, final: bool = False) -> str:
        text = self._utf8.decode(data, final)
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text
