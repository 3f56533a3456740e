"""Durable batches through the command line: resume, retry, what is refused, manifests.

Longer than most files: all of it needs the durable job, which is run, spoilt and run again.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from tests.cli.conftest import MakeLadder, Run
from tests.helpers.descriptors import open_descriptors
from tests.helpers.fake_hub import FakeHub

END = "<|im_end|>"
GOOD = [{"id": f"r{n}", "prompt": "Hi", "seed": n} for n in range(6)]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class Batch:
    """Runs batches over one input and one output."""

    def __init__(self, llmrs: Run, model: str, folder: Path) -> None:
        self._llmrs, self._model = llmrs, model
        self.source, self.out = folder / "in.jsonl", folder / "out.jsonl"
        self.journal, self.manifest = folder / "out.jsonl.journal", folder / "out.jsonl.manifest.json"
        self.write(*GOOD)

    def write(self, *rows: Any) -> None:
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        self.source.write_text("".join(line + "\n" for line in lines), "utf-8")

    def __call__(self, *args: str, stdin: str | None = None) -> tuple[int, str]:
        source = "-" if stdin is not None else str(self.source)
        result = self._llmrs(
            *("batch", source, "-o", str(self.out), "-t", "0", "-m", self._model, *args), stdin=stdin
        )
        assert result.stdout == ""
        return result.exit_code, result.stderr

    def tear(self, rows: int, *, out: int | None = None, torn: bytes = b"") -> None:
        """As a kill leaves it: `rows` in the journal, `out` of them in the output, then a torn line."""
        assert self("--overwrite")[0] in (0, 3)
        settings = json.loads(self.manifest.read_text())
        from llmrs_cli.batch.delivery import Record
        from llmrs_cli.batch.journal import Journal
        from llmrs_cli.batch.lines import Line
        from llmrs_cli.batch.records import RowReader

        journal = Journal.create(self.journal, {"seed": settings["seed"], "settings": settings["settings"]})
        lines = self.out.read_bytes().splitlines(keepends=True)
        reader = RowReader()
        for number, data in enumerate(self.source.read_bytes().splitlines()):
            row = reader.read(Line(number + 1, data))
            failed = json.loads(lines[number])["error"] is not None
            if number < rows:
                journal.append(Record(number, row.digest, failed, 9, 3, lines[number].decode().rstrip("\n")))
        journal.close()
        self.out.write_bytes(b"".join(lines[: rows if out is None else out]) + torn)


@pytest.fixture
def batch(llmrs: Run, ladder: MakeLadder, tmp_path: Path) -> Batch:
    return Batch(llmrs, ladder(), tmp_path)


def test_a_finished_run_leaves_output_and_manifest(batch: Batch) -> None:
    assert batch("--resume")[0] == 0, "nothing is there: it starts"
    made = rows_of(batch.out)
    assert [row["id"] for row in made] == [f"r{n}" for n in range(6)]
    assert sorted(path.name for path in batch.out.parent.iterdir()) == [
        "in.jsonl",
        "out.jsonl",
        "out.jsonl.manifest.json",
    ]
    manifest = json.loads(batch.manifest.read_text())
    assert manifest["status"] == "finished"
    assert manifest["rows"] == {"done": 6, "failed": 0, "reused": 0, "computed": 1, "merged": 5}
    assert manifest["tokens"]["completion"] == 18
    assert manifest["settings"]["temperature"] == 0.0
    before = batch.out.read_bytes()
    status, said = batch("--resume")
    assert (status, batch.out.read_bytes()) == (0, before)
    assert "is finished: 6 rows" in said


@pytest.mark.parametrize(
    ("rows", "out", "torn"),
    [
        (3, 3, b""),
        (3, 1, b""),
        (3, 2, b'{"index":2,"id":"r'),
        (0, 0, b""),
        (2, 2, b""),
        (6, 5, b""),
        (6, 6, b""),
    ],
)
def test_a_killed_run_goes_on_and_repeats_nothing(batch: Batch, rows: int, out: int, torn: bytes) -> None:
    batch.tear(rows, out=out, torn=torn)
    assert batch()[0] == 2, "what is there is not touched unasked"
    status, said = batch("--resume")
    assert (status, [row["id"] for row in rows_of(batch.out)]) == (0, [f"r{n}" for n in range(6)])
    manifest = json.loads(batch.manifest.read_text())
    assert (manifest["rows"]["reused"], manifest["rows"]["done"]) == (rows, 6)
    assert not rows or f"{rows} from before" in said
    assert not batch.journal.exists()


@pytest.mark.parametrize("rows", [3, 4])
def test_a_last_line_that_lacks_only_its_end_is_ended_or_done_again(batch: Batch, rows: int) -> None:
    """Whether the journal has the row or not: nothing is ever glued to it."""
    batch.tear(6)
    whole = batch.out.read_bytes().splitlines(keepends=True)
    batch.tear(rows, out=3, torn=whole[3].rstrip(b"\n"))
    assert batch("--resume")[0] == 0
    assert batch.out.read_bytes() == b"".join(whole)
    assert json.loads(batch.manifest.read_text())["rows"]["reused"] == rows


def test_half_a_character_at_the_end_of_the_journal_is_cut(batch: Batch) -> None:
    batch.tear(3)
    batch.journal.write_bytes(batch.journal.read_bytes() + "00000000 3 é".encode()[:-1])
    assert batch("--resume")[0] == 0
    assert len(rows_of(batch.out)) == 6


@pytest.mark.parametrize("torn", ["half", "a character", "the end"])
def test_an_output_without_a_journal_is_taken_as_it_is(batch: Batch, torn: str) -> None:
    """Half a last line, no journal and no manifest: the rest is kept, the torn row done again."""
    batch.write(*({**row, "note": "é"} for row in GOOD))
    batch("--overwrite")
    lines = batch.out.read_bytes().splitlines(keepends=True)
    cut = {"half": 20, "a character": lines[2].index("é".encode()) + 1, "the end": -1}[torn]
    batch.out.write_bytes(b"".join(lines[:2]) + lines[2][:cut])
    batch.manifest.unlink()
    status, said = batch("--resume")
    assert (status, len(rows_of(batch.out))) == (0, 6)
    assert "no journal" in said
    assert json.loads(batch.manifest.read_text())["rows"]["reused"] == 2


def test_rows_added_to_the_input_are_answered(batch: Batch) -> None:
    batch()
    batch.write(*GOOD, {"id": "new", "prompt": "Hi"})
    assert batch("--resume")[0] == 0
    assert [row["id"] for row in rows_of(batch.out)][-2:] == ["r5", "new"]
    rows = json.loads(batch.manifest.read_text())["rows"]
    assert (rows["reused"], rows["done"]) == (6, 7)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"status": "finished", "settings": 1}'])
def test_a_damaged_manifest_is_no_manifest(batch: Batch, content: str) -> None:
    batch()
    batch.manifest.write_text(content)
    status, said = batch("--resume")
    assert (status, "no journal" in said, len(rows_of(batch.out))) == (0, True, 6)


def test_a_job_draws_one_seed_and_keeps_it(batch: Batch) -> None:
    """It stands in journal and manifest; where a run ends and goes on does not change what is drawn."""
    args = ("-t", "1", "--max-tokens", "4", "--return-token-ids")
    batch.write(*({"prompt_token_ids": [5], "id": n} for n in range(6)), *["{"] * 2)
    assert batch(*args, "--max-errors", "0")[0] == 3
    begun = json.loads(batch.journal.read_bytes().partition(b"\n")[0])["seed"]
    batch.write(*({"prompt_token_ids": [5], "id": n} for n in range(6)))
    assert batch(*args, "--resume", "--force")[0] == 0
    assert json.loads(batch.manifest.read_text())["seed"] == begun
    drawn = rows_of(batch.out)
    assert len({tuple(row["token_ids"]) for row in drawn}) == 6
    assert batch(*args, "--overwrite", "--seed", str(begun))[0] == 0
    assert rows_of(batch.out) == drawn
    assert batch(*args, "--overwrite")[0] == 0
    assert json.loads(batch.manifest.read_text())["seed"] != begun


@pytest.mark.parametrize(
    ("args", "part"),
    [(("--max-tokens", "5"), "max-tokens"), (("-s", "Be brief."), "system"), (("--shard", "1/2"), "shard")],
)
def test_other_settings_are_refused_unless_forced(batch: Batch, args: tuple[str, ...], part: str) -> None:
    batch.tear(3)
    before = batch.out.read_bytes()
    status, said = batch("--resume", *args)
    assert (status, batch.out.read_bytes()) == (2, before)
    assert part in said
    if part != "shard":
        assert batch("--resume", "--force", *args)[0] == 0
        assert len(rows_of(batch.out)) == 6


def test_the_manifest_pins_the_commit_of_a_model(llmrs: Run, online: FakeHub, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt":"Hi"}\n')
    command = ("batch", str(source), "-o", str(out), "-m", "a/b", "-t", "0")
    assert llmrs(*command).exit_code == 0
    settings = json.loads(out.with_name("out.jsonl.manifest.json").read_text())["settings"]
    assert (settings["model"], settings["model version"]) == ("a/b", online.repos["a/b"].commit)


def test_another_model_is_refused(batch: Batch, ladder: MakeLadder) -> None:
    batch.tear(3)
    batch._model = ladder("OK", END)
    status, said = batch("--resume")
    assert status == 2
    assert "model" in said


@pytest.mark.parametrize("finished", [False, True])
def test_a_changed_input_is_refused_and_with_force_answered_anew(batch: Batch, finished: bool) -> None:
    if finished:
        batch()
    else:
        batch.tear(4)
    changed = [{**row, "max_tokens": 1} if row["id"] == "r1" else row for row in GOOD]
    batch.write(*changed)
    status, said = batch("--resume")
    assert status == 2
    assert "--force" in said
    assert batch("--resume", "--force")[0] == 0
    if not finished:
        texts = [row["text"] for row in rows_of(batch.out)]
        assert texts == ["Hello world", "Hello", *["Hello world"] * 4]


def test_an_input_that_became_shorter_is_refused(batch: Batch) -> None:
    batch.tear(4)
    batch.write(*GOOD[:2])
    assert batch("--resume")[0] == 2


@pytest.mark.parametrize("journal", [True, False])
def test_a_foreign_file_is_never_written(batch: Batch, journal: bool) -> None:
    if journal:
        batch.tear(3)
    batch.out.write_text('{"someone": "else"}\n')
    status, _ = batch("--resume")
    assert (status, batch.out.read_text()) == (2, '{"someone": "else"}\n')
    batch.journal.write_text("not a journal\n")
    assert batch("--resume")[0] == 2
    assert batch.journal.read_text() == "not a journal\n"


def test_a_run_that_is_refused_keeps_nothing_open(batch: Batch) -> None:
    batch.tear(3)
    whole = batch.out.read_bytes()
    before = open_descriptors()
    assert batch("--resume", "-s", "Be brief.")[0] == 2
    batch.write(*GOOD[1:])
    assert batch("--resume")[0] == 2
    batch.write(*GOOD)
    batch.out.write_text("foreign\n")
    assert batch("--resume")[0] == 2
    assert open_descriptors() == before
    batch.out.write_bytes(whole)
    assert batch("--resume")[0] == 0


def test_a_manifest_alone_never_blocks(batch: Batch) -> None:
    batch.manifest.write_text("{}")
    assert batch()[0] == 0


def test_failed_rows_are_asked_again_on_request(batch: Batch) -> None:
    batch.write(GOOD[0], {"id": "bad", "prompt": "Hi", "temperature": 9}, GOOD[2])
    assert batch()[0] == 3
    status, _ = batch("--resume")
    assert status == 3, "finished, and still with a failed row"
    assert batch("--retry-failed")[0] == 3
    manifest = json.loads(batch.manifest.read_text())
    assert (manifest["rows"]["reused"], manifest["rows"]["failed"]) == (2, 1)
    assert [row["id"] for row in rows_of(batch.out)] == ["r0", "bad", "r2"]


def test_failed_rows_may_go_to_a_file_of_their_own(batch: Batch, tmp_path: Path) -> None:
    batch.write(GOOD[0], "{", GOOD[2], "5")
    args = ("--errors", str(tmp_path / "bad.jsonl"))
    assert batch(*args)[0] == 3
    assert [row["id"] for row in rows_of(batch.out)] == ["r0", "r2"]
    assert [row["index"] for row in rows_of(tmp_path / "bad.jsonl")] == [1, 3]
    assert batch(*args)[0] == 2
    assert batch(*args, "--resume")[0] == 3
    assert batch(*args, "--retry-failed")[0] == 3
    assert [row["index"] for row in rows_of(tmp_path / "bad.jsonl")] == [1, 3]


def test_stdin_can_be_given_again(batch: Batch) -> None:
    text = batch.source.read_text()
    batch.tear(3)
    assert batch("--resume", stdin=text)[0] == 0
    assert len(rows_of(batch.out)) == 6
    assert batch("--resume", stdin=text)[0] == 0
    batch.tear(3)
    assert batch("--resume", stdin=text.replace("r1", "rx"))[0] == 2


def test_shards_share_the_rows_and_their_answers(batch: Batch, tmp_path: Path) -> None:
    args = ("-t", "1", "--seed", "3", "--max-tokens", "4", "--return-token-ids")
    batch.write(*({"prompt_token_ids": [5], "id": n} for n in range(7)))
    batch(*args)
    whole = rows_of(batch.out)
    parts = []
    for part in ("1/3", "2/3", "3/3"):
        batch(*args, "--shard", part, "--overwrite")
        parts.append(rows_of(batch.out))
    assert [len(part) for part in parts] == [3, 2, 2]
    assert sorted((row for part in parts for row in part), key=lambda row: row["index"]) == whole


def test_compressed_in_and_out_and_resumed(batch: Batch, llmrs: Run, tmp_path: Path) -> None:
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(batch.source.read_bytes()))
    for name in ("out.jsonl.gz", "out.jsonl.zst"):
        command = ("batch", str(packed), "-o", str(tmp_path / name), "-t", "0", "-m", batch._model)
        assert llmrs(*command).exit_code == 0
        again = llmrs(*command, "--resume")
        assert (again.exit_code, "finished" in again.stderr) == (0, True)
    expected = gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes())
    assert len(expected.splitlines()) == 6
    assert [row["id"] for row in map(json.loads, expected.splitlines())] == [f"r{n}" for n in range(6)]
    assert len(zstd.decompress((tmp_path / "out.jsonl.zst").read_bytes()).splitlines()) == 6


def test_limit_and_more_later(batch: Batch) -> None:
    assert batch("--limit", "2")[0] == 0
    assert len(rows_of(batch.out)) == 2
    assert batch("--resume")[0] == 0
    assert len(rows_of(batch.out)) == 6


def test_too_many_errors_end_the_run_which_can_be_resumed(batch: Batch) -> None:
    batch.write(*["{"] * 10)
    status, said = batch("--max-errors", "3")
    assert (status, "More than 3 rows failed" in said) == (3, True)
    assert batch.journal.exists()
    assert "--resume" in said


def test_done_order_and_plain_text_resume_only_with_their_journal(batch: Batch) -> None:
    for args in (("--order", "done"), ("--output-format", "text")):
        assert batch(*args, "--overwrite")[0] == 0
        assert batch(*args, "--resume")[0] == 0
        batch.manifest.unlink()
        assert batch(*args, "--resume")[0] == 2


def test_one_output_is_written_by_one_run(batch: Batch) -> None:
    from llmrs_cli.batch.lock import OutputLock

    with OutputLock(batch.out):
        status, said = batch()
    assert status == 2
    assert "process" in said
