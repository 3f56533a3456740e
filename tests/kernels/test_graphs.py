"""Recording launches, with a CuPy that only pretends; no GPU."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.kernels.graphs import AGE, Graphs


class Graph:
    """A graph of a stream that counts its launches."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def launch(self) -> None:
        self.stream.events.append("launch")


class Stream:
    """Remembers what happens to it, and the graphs of it that somebody holds."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.graphs: WeakSet[Graph] = WeakSet()
        self.most = 0
        """Graphs that were held at once, with those that were being recorded."""

    def begin_capture(self) -> None:
        self.events.append("begin")
        self.most = max(self.most, len(self.graphs) + 1)

    def end_capture(self) -> Graph:
        self.events.append("end")
        graph = Graph(self)
        self.graphs.add(graph)
        return graph

    def recorded(self) -> int:
        """Recordings since the last call."""
        count = self.events.count("begin")
        self.events.clear()
        return count


@contextmanager
def pretended() -> Iterator[Stream]:
    """A stream that is the current one of a CuPy that only pretends."""
    found = Stream()
    fake = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: found))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", fake)
        yield found


@pytest.fixture
def stream() -> Iterator[Stream]:
    with pretended() as found:
        yield found


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


def test_keys_of_which_there_are_few_are_kept_whatever_comes_beside_them(stream: Stream) -> None:
    graphs = Graphs(most=2)
    for key in range(10):
        for _ in range(2):
            graphs.run(key, lambda: None)
    for key in range(100, 200):
        for _ in range(2):
            graphs.run(key, lambda: None, passing=True)
    stream.events.clear()
    for key in range(10):
        graphs.run(key, lambda: None)
    assert stream.events == ["launch"] * 10


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), max_size=40), st.integers(1, 4))
def test_passing_keys_are_never_more_graphs_than_there_are_places(
    turns: list[tuple[int, int]], most: int
) -> None:
    with pretended() as stream:
        graphs, met = Graphs(most), set[int]()
        for key in (key for key, times in turns for _ in range(times)):
            before = len(stream.events)
            assert graphs.run(key, lambda key=key: key, passing=True) == key  # type: ignore[misc]
            if key not in met:
                assert len(stream.events) == before
            met.add(key)
        assert stream.most <= most  # what gives way goes first


def test_a_key_takes_a_place_only_where_it_is_met_clearly_more_often(stream: Stream) -> None:
    graphs = Graphs(most=1)
    for key in "aaa":
        graphs.run(key, lambda: None, passing=True)
    stream.events.clear()
    for _ in range(9):  # 9 < 2 · 3 + 4
        graphs.run("b", lambda: None, passing=True)
    assert stream.events == []
    graphs.run("a", lambda: None, passing=True)
    assert stream.events == ["launch"]
    for _ in range(3):  # 12 = 2 · 4 + 4
        graphs.run("b", lambda: None, passing=True)
    assert stream.events == ["launch", "begin", "end", "launch"]


def test_what_was_frequent_gives_way_to_what_is(stream: Stream) -> None:
    graphs = Graphs(most=4)
    for turn in range(8 * AGE):
        graphs.run(turn % 4, lambda: None, passing=True)
    stream.events.clear()
    for turn in range(4 * AGE):
        graphs.run(10 + turn % 4, lambda: None, passing=True)
    assert stream.recorded() == 4
    for turn in range(100):
        graphs.run(10 + turn % 4, lambda: None, passing=True)
    assert stream.events == ["launch"] * 100


def test_rare_keys_are_not_recorded_once_the_places_are_taken(stream: Stream) -> None:
    """A hundred sizes, of which the first are met most; few steps run without a graph."""
    graphs, draw = Graphs(most=24), random.Random(1)
    runs = 8 * AGE
    keys = [min(int(draw.expovariate(1 / 8)), 100) for _ in range(2 * runs)]
    for key in keys[:runs]:
        graphs.run(key, lambda: None, passing=True)
    assert stream.recorded() >= 24
    for key in keys[runs:]:
        graphs.run(key, lambda: None, passing=True)
    assert stream.events.count("launch") >= 0.93 * runs
    assert stream.recorded() <= 8 and stream.most == 24


def test_after_addresses_have_changed_what_has_run_is_recorded_at_once(stream: Stream) -> None:
    graphs = Graphs()
    for passing in (False, True):
        for _ in range(2):
            graphs.run("a", lambda: None, passing)
    graphs.run("b", lambda: None)
    graphs.forget_recordings()
    assert not stream.graphs
    stream.events.clear()
    for key, passing in (("a", False), ("b", False), ("a", True)):
        graphs.run(key, lambda: None, passing)
    assert stream.events == ["begin", "end", "launch"] * 3
