"""Recording launches, with a CuPy that only pretends; no GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from llmrs_cli.kernels.graphs import Graphs


class Stream:
    """Remembers what happens to it; a graph of it counts its launches."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def begin_capture(self) -> None:
        self.events.append("begin")

    def end_capture(self) -> SimpleNamespace:
        self.events.append("end")
        return SimpleNamespace(launch=lambda: self.events.append("launch"))


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    found = Stream()
    fake = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: found))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return found


def test_a_size_is_recorded_the_second_time_and_replayed_from_then_on(stream: Stream) -> None:
    graphs, calls = Graphs(), []

    def body() -> int:
        calls.append(len(stream.events))
        return len(calls)

    assert [graphs.run("a", body) for _ in range(4)] == [1, 2, 2, 2]
    assert len(calls) == 2
    assert stream.events == ["begin", "end", "launch", "launch", "launch"]


def test_keys_are_apart(stream: Stream) -> None:
    graphs = Graphs()
    assert [graphs.run(key, lambda key=key: key) for key in "abab"] == ["a", "b", "a", "b"]  # type: ignore[misc]
    assert stream.events == ["begin", "end", "launch"] * 2


def test_a_body_that_fails_ends_its_recording_and_leaves_no_graph(stream: Stream) -> None:
    graphs = Graphs()
    graphs.run("a", lambda: None)

    def broken() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        graphs.run("a", broken)
    assert stream.events == ["begin", "end"]
    assert graphs.run("a", lambda: "again") == "again"
    assert stream.events == ["begin", "end", "begin", "end", "launch"]


def test_the_graphs_used_last_are_kept(stream: Stream) -> None:
    graphs = Graphs(most=2)
    for key in "aabbacc":
        graphs.run(key, lambda: None)
    stream.events.clear()
    for key in "cab":  # b was used before a
        graphs.run(key, lambda: None)
    assert stream.events == ["launch", "launch", "begin", "end", "launch"]


def test_after_addresses_have_changed_what_has_run_is_recorded_at_once(stream: Stream) -> None:
    graphs = Graphs()
    for _ in range(2):
        graphs.run("a", lambda: None)
    graphs.run("b", lambda: None)
    graphs.forget_recordings()
    stream.events.clear()
    for key in "ab":
        graphs.run(key, lambda: None)
    assert stream.events == ["begin", "end", "launch"] * 2
