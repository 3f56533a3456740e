"""Whether a grammar can be followed at a bounded cost, found out by another process that may be lost.

What clients write as schemas, patterns and grammars is compiled by a library whose cost nobody can tell
beforehand: `{"multipleOf": 9999991}` would keep it busy for hours. So every grammar is first compiled, and an
answer begun, in a child process that the kernel ends when it takes too long or too much (`grammar_child`).
Only what has passed there is ever compiled where answers are made.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable

from llmrs_cli.errors import LlmrsError, RequestError
from llmrs_cli.text.grammar_child import HEADER, frame

CHILD = (sys.executable, "-P", "-m", "llmrs_cli.text.grammar_child")
MAX_KNOWN = 4096
"""Verdicts that are kept."""
LOST = "The form cannot be followed: it takes too long or too much memory."


class GrammarTrial:
    """Tries one grammar at a time; may be shared between threads. The process starts with the first one."""

    def __init__(
        self, command: tuple[str, ...] = CHILD, further: Callable[[str], str] = lambda grammar: ""
    ) -> None:
        """`further`: of a grammar that has passed, why it cannot be followed all the same; "" if it can be."""
        self._command = command
        self._further = further
        self._trying = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        """Of what is known: never held while anything is tried."""
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def knows(self, grammar: str) -> bool:
        """Whether `check` has its answer at once."""
        return self._verdict(_key(grammar)) is not None

    def check(self, grammar: str, param: str) -> None:
        """Return if `grammar` can be followed; takes a few seconds at most. RequestError naming `param` says
        why it cannot be; LlmrsError if it could not be tried."""
        key = _key(grammar)
        verdict = self._verdict(key)
        if verdict is None:
            with self._trying:
                verdict = self._verdict(key)  # another thread may have asked the same
                if verdict is None:
                    verdict = self._try(grammar) or self._further(grammar)
                    self._keep(key, verdict)
        if verdict:
            raise RequestError(verdict, code="invalid_grammar", param=param)

    def _verdict(self, key: bytes) -> str | None:
        """What was found out about a grammar; None: nothing yet."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def _keep(self, key: bytes, verdict: str) -> None:
        with self._lock:
            self._known[key] = verdict
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def close(self) -> None:
        """End the process."""
        with self._trying:
            self._end()

    def _try(self, grammar: str) -> str:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(frame(grammar))
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended; there will be no answer either
        header = process.stdout.read(HEADER)
        if len(header) < HEADER:
            self._end()
            return LOST
        return process.stdout.read(int.from_bytes(header, "big")).decode()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise LlmrsError(f"Forms of answers cannot be checked: {error.strerror}.") from error
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _key(grammar: str) -> bytes:
    return hashlib.sha256(grammar.encode()).digest()
