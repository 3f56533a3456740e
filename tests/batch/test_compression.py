"""Compression: what goes in comes out, in whatever pieces, and is there for readers after a flush."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.compression import compressor_for, decompressed, plain_name
from llmrs_cli.errors import ModelError

NAMES = ("out.gz", "out.GZ", "out.zst", "out.zstd")


def opened(data: bytes) -> Any:
    return decompressed(io.BufferedReader(io.BytesIO(data)))


@pytest.mark.parametrize("name", NAMES)
@given(pieces=st.lists(st.binary(max_size=200), max_size=8), flushes=st.sets(st.integers(0, 8)))
def test_what_is_written_in_pieces_is_read_as_a_whole(
    name: str, pieces: list[bytes], flushes: set[int]
) -> None:
    compressor = compressor_for(Path(name))
    assert compressor is not None
    packed = b""
    for place, piece in enumerate(pieces):
        packed += compressor.compress(piece)
        if place in flushes:
            packed += compressor.flush()
    packed += compressor.end()
    assert opened(packed).read() == b"".join(pieces)


@pytest.mark.parametrize("name", NAMES)
def test_after_a_flush_a_reader_sees_everything_so_far(name: str) -> None:
    compressor = compressor_for(Path(name))
    assert compressor is not None
    packed = compressor.compress(b"one\n") + compressor.flush()
    lines = opened(packed)
    assert lines.readline() == b"one\n"


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_streams_one_after_another_are_one(pack: Any) -> None:
    assert opened(pack(b"a\n") + pack(b"b\n")).read() == b"a\nb\n"


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
@given(cut=st.integers(5, 400))
def test_a_stream_that_is_cut_is_an_error_and_never_an_end(pack: Any, cut: int) -> None:
    data = bytes(range(256)) * 2
    packed = pack(data)[:-1][:cut]
    with pytest.raises(ModelError, match="stream is (cut off|damaged)"):
        assert len(opened(packed).read()) <= len(data)


@pytest.mark.parametrize("data", [b"", b"x", b"\x1f", b"\x28\xb5\x2f", b'{"prompt":"x"}\n'])
def test_what_is_not_compressed_is_taken_as_it_is(data: bytes) -> None:
    assert opened(data).read() == data


@pytest.mark.parametrize(
    ("name", "plain"), [("a.jsonl.gz", "a.jsonl"), ("a.txt", "a.txt"), ("a.csv.ZST", "a.csv"), ("gz", "gz")]
)
def test_a_name_without_its_ending(name: str, plain: str) -> None:
    assert plain_name(Path(name)) == Path(plain)
    assert (compressor_for(Path(name)) is None) is (name == plain)
