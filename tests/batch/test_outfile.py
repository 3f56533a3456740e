"""Output files are brought up to their lines from any torn state, and foreign content is never overwritten."""

from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.batch.outfile import open_outfile
from llmrs_cli.errors import UsageError

LINES = [f"line {n} é\n".encode() for n in range(6)]
WHOLE = b"".join(LINES)


@given(cut=st.integers(0, len(WHOLE)), known=st.integers(1, 6), more=st.integers(0, 2))
def test_a_file_that_was_cut_anywhere_is_continued(
    tmp_path_factory: pytest.TempPathFactory, cut: int, known: int, more: int
) -> None:
    """It may hold less than the journal knows, or, after a loss of power, more."""
    path = tmp_path_factory.mktemp("out") / "out"
    path.write_bytes(WHOLE[:cut])
    file = open_outfile(path)
    file.restore(LINES[:known])
    assert path.read_bytes() == b"".join(LINES[:known])
    for line in LINES[known : known + more]:
        file.write(line)
    file.close()
    assert path.read_bytes() == b"".join(LINES[: known + more])


def test_other_lines_are_not_replaced_unless_they_are_known_to_be_ours(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"somebody's own\n")
    for lines in (LINES, []):
        with closing(open_outfile(path)) as file, pytest.raises(UsageError, match="other lines"):
            file.restore(lines)
    assert path.read_bytes() == b"somebody's own\n"
    with closing(open_outfile(path, trusted=True)) as file:
        file.restore(LINES)
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("name", ["out.gz", "out.zst"])
def test_a_compressed_file_is_made_again_and_can_be_read_after_a_sync(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"torn")
    file = open_outfile(path)
    file.restore(LINES[:3])
    file.write(LINES[3])
    file.sync()
    assert _read_unfinished(path) == b"".join(LINES[:4])
    file.write(LINES[4])
    file.close()
    if name.endswith(".gz"):
        assert gzip.decompress(path.read_bytes()) == b"".join(LINES[:5])
    assert _read_unfinished(path) == b"".join(LINES[:5])


def _read_unfinished(path: Path) -> bytes:
    """As `zcat` shows what is there so far."""
    if path.suffix == ".gz":
        import zlib

        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(path.read_bytes())
    from backports import zstd

    return bytes(zstd.ZstdDecompressor().decompress(path.read_bytes()))
