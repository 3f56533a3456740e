"""The terminal writer: what reaches which stream, filtered or byte for byte."""

from __future__ import annotations

import io
import re
import time

import pytest

from llmrs_cli.cli import status
from llmrs_cli.cli.terminal import Terminal, fold
from llmrs_cli.errors import LlmrsError


class Stream(io.TextIOWrapper):
    """A text stream over memory that may claim to be a terminal."""

    def __init__(self, *, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def bytes(self) -> bytes:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


def streams(*, out: bool, err: bool) -> tuple[Stream, Stream]:
    return Stream(terminal=out), Stream(terminal=err)


NASTY = "a\x1b]52;c;AAAA\x07b\x1b[2Jc\r\u202ed"


def test_a_pipe_gets_every_byte() -> None:
    out, err = streams(out=False, err=False)
    Terminal(out, err).answer(NASTY)
    assert out.bytes == NASTY.encode()


def test_a_terminal_gets_no_control_sequence() -> None:
    out, err = streams(out=True, err=True)
    terminal = Terminal(out, err)
    for char in NASTY:
        terminal.answer(char)
    assert out.bytes == b"abc<U+202E>d"


def test_stderr_is_filtered_even_where_it_is_no_terminal() -> None:
    out, err = streams(out=False, err=False)
    terminal = Terminal(out, err)
    terminal.warn("no file \x1b[31mx")
    terminal.thinking("hm \x1b]0;t")
    terminal.thinking("itle\x07done")
    assert err.bytes == b"llmrs: no file x\nhm done"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_answers_are_utf8_whatever_the_locale(encoding: str) -> None:
    out = Stream(terminal=False, encoding=encoding)
    Terminal(out, None).answer("é😊")
    assert out.bytes == "é😊".encode()


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    out, _ = streams(out=False, err=False)
    Terminal(out, None).answer("a\ud83db")
    assert out.bytes == "a\ufffdb".encode()


@pytest.mark.parametrize(("said", "written"), [("Hi", b"Hi\n"), ("Hi\n", b"Hi\n"), ("", b"")])
def test_an_answer_ends_with_one_newline(said: str, written: bytes) -> None:
    out, _ = streams(out=False, err=False)
    terminal = Terminal(out, None)
    terminal.answer(said)
    terminal.end_answer()
    assert out.bytes == written


def test_thinking_is_dim_and_its_line_ends_before_the_answer() -> None:
    out, err = streams(out=True, err=True)
    terminal = Terminal(out, err)
    terminal.thinking("hm")
    terminal.answer("Hi")
    assert err.bytes == b"\x1b[2mhm\x1b[0m\n"
    assert out.bytes == b"Hi"


def test_a_notice_in_the_middle_of_an_answer_starts_on_its_own_line() -> None:
    out, err = streams(out=True, err=True)
    terminal = Terminal(out, err)
    terminal.answer("Hi")
    terminal.warn("Cut.")
    terminal.end_answer()
    assert err.bytes == b"\nllmrs: Cut.\n"
    assert out.bytes == b"Hi"


@pytest.mark.parametrize(
    ("color", "dumb", "err_is_terminal", "dim"),
    [
        ("auto", False, True, True),
        ("auto", False, False, False),
        ("auto", True, True, False),
        ("never", False, True, False),
        ("always", False, False, True),
    ],
)
def test_when_figures_are_styled(color: str, dumb: bool, err_is_terminal: bool, dim: bool) -> None:
    out, err = streams(out=False, err=err_is_terminal)
    Terminal(out, err, color=color, dumb=dumb).stats("3 tokens")
    assert (b"\x1b[" in err.bytes) is dim


def test_quiet_drops_notices_and_figures_but_no_warning() -> None:
    out, err = streams(out=False, err=False)
    terminal = Terminal(out, err)
    terminal.quiet = True
    terminal.notice("Loading.")
    terminal.stats("3 tokens")
    terminal.warn("The answer was cut.")
    with terminal.working("Loading") as bar:
        bar.update(1, 2)
    assert err.bytes == b"llmrs: The answer was cut.\n"


def test_a_closed_stdout_is_an_error_and_a_closed_stderr_is_not() -> None:
    with pytest.raises(LlmrsError):
        Terminal(None, None).answer("Hi")
    Terminal(None, None).warn("unheard")


def test_a_stderr_that_breaks_does_not_stop_the_answer() -> None:
    class Broken(Stream):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    out = Stream(terminal=False)
    terminal = Terminal(out, Broken(terminal=False))
    terminal.warn("lost")
    terminal.answer("Hi")
    assert out.bytes == b"Hi"


def wait_until(stream: Stream, part: bytes) -> None:
    deadline = time.monotonic() + 20
    while part not in stream.bytes and time.monotonic() < deadline:
        time.sleep(0.005)


def test_work_animates_on_a_terminal_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "SHOW_AFTER", 0.0)
    monkeypatch.setattr(status, "FRAME", 0.001)
    out, err = streams(out=True, err=True)
    with Terminal(out, err).working("Loading") as bar:
        bar.update(50, 100)
        wait_until(err, b"Loading 50 %")
    assert b"Loading 50 %" in err.bytes
    assert err.bytes.endswith(b"\r\x1b[K")
    assert b"\n" not in err.bytes
    assert out.bytes == b""


def test_long_work_says_one_plain_line_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "SAY_AFTER", 0.0)
    out, err = streams(out=False, err=False)
    with Terminal(out, err).working("Loading"):
        wait_until(err, b"\n")
    assert err.bytes == b"llmrs: Loading ...\n"


def test_quick_work_says_nothing() -> None:
    for is_terminal in (True, False):
        out, err = streams(out=False, err=is_terminal)
        with Terminal(out, err).working("Loading"):
            pass
        assert err.bytes == b""


def test_data_and_notices_first_erase_a_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "SHOW_AFTER", 0.0)
    out, err = streams(out=True, err=True)
    terminal = Terminal(out, err)
    with terminal.working("Answering"):
        wait_until(err, b"Answering")
        with terminal._lock:
            assert terminal._status_shown
            terminal.warn("A warning.")
            assert err.bytes.endswith(b"\r\x1b[Kllmrs: A warning.\n")


# -- Markdown, recalling, folding ---------------------------------------------------------------------


def painting() -> tuple[Terminal, Stream, Stream]:
    out, err = streams(out=True, err=True)
    terminal = Terminal(out, err)
    terminal.paint_markdown()
    return terminal, out, err


def test_markdown_is_painted_on_a_terminal_with_colour_only() -> None:
    terminal, out, _ = painting()
    terminal.answer("**a** b")
    terminal.end_answer()
    terminal.answer("**c**")
    terminal.end_answer()
    assert out.bytes == b"\x1b[1ma\x1b[0m b\n\x1b[1mc\x1b[0m\n"
    for plain in (
        Terminal(Stream(terminal=False), None),
        Terminal(Stream(terminal=True), None, color="never"),
    ):
        plain.paint_markdown()
        plain.answer("**a**")
        assert isinstance(plain._out, Stream)
        assert plain._out.bytes == b"**a**"


@pytest.mark.parametrize(
    "sequence",
    [
        *(
            "\x1b[2J",
            "\x1b]0;t\x07",
            "\x1b]8;;http://x\x1b\\",
            "\x1b]52;c;eA==\x07",
            "\x1bPq\x1b\\",
            "\x9b31m",
        ),
        *("\x07", "\r", "\x0b", "\x7f", "\x1bc", "\x1b(0"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "**{}**", "`{}`", "```sh\n{}\n```", "| a |\n|---|\n| {} |", "- {}"])
def test_painting_lets_no_sequence_through_however_it_is_cut(sequence: str, around: str) -> None:
    text = around.replace("{}", f"x{sequence}y") + "\n"
    for cut in range(len(text)):
        terminal, out, _ = painting()
        terminal.answer(text[:cut])
        terminal.answer(text[cut:])
        terminal.end_answer()
        left = re.sub(r"\x1b\[[0-9;]*m", "", out.bytes.decode())
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", left), (cut, left)
        assert b"\x1b[31m" not in out.bytes


@pytest.mark.parametrize("paint", [True, False])
def test_of_what_is_recalled_the_last_line_is_shown_again(paint: bool) -> None:
    out, err = streams(out=True, err=True)
    terminal = Terminal(out, err)
    if paint:
        terminal.paint_markdown()
    terminal.recall("one\ntwo th")
    terminal.answer("ree")
    terminal.end_answer()
    assert out.bytes == b"two three\n"


def test_hidden_thoughts_leave_no_trace() -> None:
    out, err = streams(out=True, err=True)
    terminal = Terminal(out, err)
    terminal.hide_thinking()
    terminal.thinking("hm")
    assert err.bytes == b""


def test_the_clipboard_gets_text_by_a_sequence_of_ours() -> None:
    out, err = streams(out=True, err=True)
    Terminal(out, err).clipboard("é")
    assert (out.bytes, err.bytes) == (b"", b"\x1b]52;c;w6k=\x07")


def test_lines_fold_between_words_and_tables_keep_their_columns() -> None:
    assert fold("one two three four five six", 21) == "one two three four\nfive six"
    assert fold("  /a  one two three four five", 25) == "  /a  one two three four\n      five"
    assert fold("  /a-long-one  one two three", 21) == "  /a-long-one  one\n      two three"
    assert fold("x" * 50, 21) == "x" * 50
    assert fold("a\n\nb", 21) == "a\n\nb"


def test_only_a_terminal_gets_folded_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    line = "a line of more than thirty characters"
    shown = {}
    for is_terminal in (True, False):
        out, err = streams(out=is_terminal, err=is_terminal)
        Terminal(out, err, color="never").say(line)
        shown[is_terminal] = err.bytes.decode()
    assert shown == {True: "a line of more than thirty\ncharacters\n", False: line + "\n"}
