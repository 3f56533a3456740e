"""A process that tries grammars out and may be lost while it does: the other side of `grammar_trial`.

    python -P -m llmrs_cli.text.grammar_child

stdin: grammars, each a frame of four bytes of length (big-endian) and UTF-8. stdout: for each a frame that
is empty, or says why it cannot be followed. The kernel ends the process when one grammar takes more
processor time than it may, or more memory; no library has to agree. It stands on single bytes instead of a
model's tokens, so it starts at once; what a grammar costs depends little on them.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random

import llguidance

SECONDS = 1.0
"""Processor time of one grammar: compiling it, and the beginnings of answers."""
STEP_SECONDS = 0.2
"""Of one step of an answer."""
MEMORY = 512 * 1024 * 1024
"""Bytes of private memory of the process."""
STEPS = 24
"""Of each answer that is tried."""
COMPLEX = "The form cannot be followed: it is too complex."
HEADER = 4
END = 256


class Bytes:
    """A vocabulary of the bytes and an end, as llguidance wants to see it."""

    bos_token_id = None
    eos_token_id = END
    tokens = [*(bytes([byte]) for byte in range(END)), b"<end>"]
    special_token_ids = [END]

    def __call__(self, text: str) -> list[int]:
        return [*text.encode()]


def trouble(vocabulary: llguidance.LLTokenizer, grammar: str) -> str:
    """Why `grammar` cannot be followed; "" if nothing is wrong with it."""
    matcher = compiled(vocabulary, grammar)
    return fault_of(matcher) or begins(matcher, (END,))


def compiled(vocabulary: llguidance.LLTokenizer, grammar: str) -> llguidance.LLMatcher:
    """A matcher at the beginning of `grammar`; see `fault_of`. A step of its parser, and the states that it
    keeps, are bounded."""
    limits = llguidance.LLParserLimits(step_max_items=50_000, max_lexer_states=20_000, verbose_errors=False)
    return llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=limits)


def fault_of(matcher: llguidance.LLMatcher) -> str:
    """Why a new matcher cannot be used, a sentence; "" if nothing is wrong with it."""
    if matcher.is_error():
        return f"The form cannot be followed: {_shown(matcher.get_error())}"
    if warnings := matcher.get_grammar_warnings():
        return f"The form cannot be followed to the letter: {_shown(warnings[0])}"
    return ""


def begins(matcher: llguidance.LLMatcher, ends: Sequence[int]) -> str:
    """Why the first steps of answers cannot be had cheaply, a sentence; "" if they can.

    Two answers are begun: one of the lowest token each time, which are the single characters that give a text its
    structure, and one of random tokens. `ends`: the tokens that end an answer.
    """
    limit = time.thread_time() + SECONDS
    for random in (None, Random(0)):
        own = matcher.deep_copy()
        for _ in range(STEPS):
            began = time.thread_time()
            token = _following(own, ends, random)
            if token is not None:
                own.consume_token(token)
            now = time.thread_time()
            if own.is_error() or now - began > STEP_SECONDS or now > limit:
                return COMPLEX
            if token is None:
                break
    return ""


def _following(matcher: llguidance.LLMatcher, ends: Sequence[int], random: Random | None) -> int | None:
    """The lowest token that may follow, or the lowest behind a random place; None if there is none but ends."""
    mask = bytearray(matcher.compute_bitmask())
    for end in ends:
        mask[end // 8] &= ~(1 << end % 8)
    if random is not None:
        first = random.randrange(len(mask))
        mask = mask[first:] + mask[:first]
    place = len(mask) - len(mask.lstrip(b"\0"))
    if place == len(mask):
        return None
    bits = [bit for bit in range(8) if mask[place] >> bit & 1]
    if random is None:
        return 8 * place + bits[0]
    return (first + place) % len(mask) * 8 + random.choice(bits)


def _shown(error: str) -> str:
    """A library's words in a sentence of ours: the first line, escaped and shortened."""
    line = error.strip().splitlines()[0] if error.strip() else "it is too complex"
    line = line if line.isprintable() else line.encode("unicode_escape").decode("ascii")
    return (line if len(line) <= 200 else line[:199] + "…").rstrip(".") + "."


def frame(text: str) -> bytes:
    """A text as it goes over a pipe."""
    data = text.encode()
    return len(data).to_bytes(HEADER, "big") + data


def _grammars() -> Iterator[str]:
    read = sys.stdin.buffer.read
    while len(header := read(HEADER)) == HEADER:
        yield read(int.from_bytes(header, "big")).decode()


def main() -> None:
    """Entry point of the process."""
    os.nice(5)  # what is answered comes before what is asked
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    vocabulary = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()), n_vocab=END + 1, eos_token=END)
    for grammar in _grammars():
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        answer = trouble(vocabulary, grammar)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(frame(answer))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
