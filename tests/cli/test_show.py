"""`llmrs show`: what a model is, where it is, and whether it fits, from the files, the Hub or our table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.cli import room
from llmrs_cli.cli.licences import licence_of
from llmrs_cli.cli.show import count_text
from llmrs_cli.errors import ExitCode
from llmrs_cli.hub.aliases import ALIASES
from tests.cli.conftest import Run
from tests.helpers.fake_hub import FakeHub, Fault
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import TinyModel, write_tiny


def shown(llmrs: Run, *args: str) -> dict[str, Any]:
    result = llmrs("show", *args, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert isinstance(report, dict)
    return report


def test_a_folder_is_described_from_its_files(llmrs: Run, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", TinyModel(family="qwen3"))
    report = shown(llmrs, str(folder))
    config = json.loads((folder / "config.json").read_text())
    assert (report["source"], report["path"], report["family"]) == ("this machine", str(folder), "qwen3")
    assert (report["layers"], report["hidden"]) == (config["num_hidden_layers"], config["hidden_size"])
    assert report["context"] == config["max_position_embeddings"]
    assert (report["weights"], report["chat_template"]) == (["float16"], True)
    assert {file["name"]: file["size"] for file in report["files"]} == {
        path.name: path.stat().st_size for path in folder.iterdir()
    }
    assert report["memory"]["fits"] is True
    assert report["memory"]["largest_context"] == report["context"]


def test_parameters_are_counted_as_the_file_has_them(llmrs: Run, tmp_path: Path) -> None:
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint

    folder = write_tiny(tmp_path / "tiny", TinyModel(family="llama"))
    stored = sum(parameter.nbytes for parameter in open_checkpoint(folder).parameters.values())
    report = shown(llmrs, str(folder))
    assert report["memory"]["weights"] == stored
    assert report["parameters"] == stored // 2


def test_quantised_weights_are_named(llmrs: Run, tmp_path: Path) -> None:
    forms = shown(llmrs, str(write_tiny(tmp_path / "tiny", TinyModel(awq=True))))["weights"]
    assert any("4-bit AWQ" in form for form in forms)


def test_a_gguf_file_is_described(llmrs: Run, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", TinyModel(family="llama"))
    report = shown(llmrs, str(path))
    assert (report["path"], [file["name"] for file in report["files"]]) == (str(path), ["m.gguf"])
    assert report["family"] == "llama"


def test_a_pulled_model_shows_its_commits(llmrs: Run, online: FakeHub) -> None:
    online.repos["a/b"].tags |= {"v1": "1" * 40, "1" * 40: "1" * 40}
    llmrs("pull", "a/b")
    llmrs("pull", "a/b@v1")
    asked = len(online.seen)
    commit = online.repos["a/b"].commit
    report = shown(llmrs, "a/b")
    assert (report["commit"], report["source"]) == (commit, "this machine")
    assert {kept["commit"]: kept["revisions"] for kept in report["kept"]} == {
        "1" * 40: ["v1"],
        commit: ["main"],
    }
    assert shown(llmrs, "a/b", "--revision", "v1")["commit"] == "1" * 40
    assert len(online.seen) == asked, "what is here is not asked for"
    assert f"kept        {'1' * 40} v1" in llmrs("show", "a/b").stdout


def test_a_model_on_the_hub_is_described_without_fetching_it(
    llmrs: Run, online: FakeHub, tmp_path: Path
) -> None:
    report = shown(llmrs, "a/b")
    assert (report["source"], report["path"]) == ("the Hub", None)
    assert report["commit"] == online.repos["a/b"].commit
    assert report["layers"] and report["memory"]["fits"]
    assert {file["here"] for file in report["files"]} == {False}
    assert not any("safetensors" in seen.path for seen in online.seen)
    assert not (tmp_path / "hf").exists()
    assert "not on this machine" in llmrs("show", "a/b").stdout


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ({"license": "mit"}, "mit"),
        ({"license": "other", "license_name": "our-own"}, "our-own"),
        ({"license": ["a", "b"]}, None),
        ({}, None),
    ],
)
def test_the_licence_is_the_one_that_the_hub_names_and_an_unknown_one_is_not_mentioned(
    llmrs: Run, online: FakeHub, card: dict[str, object], licence: str | None
) -> None:
    online.repos["a/b"].card = card
    assert shown(llmrs, "a/b")["licence"] == licence
    assert ("licence" in llmrs("show", "a/b").stdout) == (licence is not None)


def test_a_damaged_configuration_on_the_hub_is_no_crash(llmrs: Run, online: FakeHub) -> None:
    online.repos["a/b"].files["config.json"] = b"{]"
    assert shown(llmrs, "a/b")["memory"] is None


def test_an_alias_is_described_offline_from_the_table(llmrs: Run) -> None:
    report = shown(llmrs, "llama3.2-1b")
    assert (report["source"], report["gated"]) == ("the table of names", True)
    assert (report["licence"], report["family"]) == ("llama3.2", "llama")
    assert 1.2e9 < report["parameters"] < 1.3e9
    text = llmrs("show", "qwen2.5-7b-awq").stdout
    assert "4-bit AWQ" in text and "apache-2.0" in text


def test_what_does_not_fit_is_said_and_is_no_failure(llmrs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: 7_000_000_000)
    few = shown(llmrs, "qwen2.5-3b", "--ctx", "4k")["memory"]
    many = shown(llmrs, "qwen2.5-3b", "--ctx", "4k", "--rows", "64")["memory"]
    assert (few["fits"], many["fits"]) == (True, False)
    assert few["largest_context"] > many["largest_context"] > 0
    assert few["advice"] is None
    assert "--ctx" in many["advice"] or "fits" in many["advice"]
    text = llmrs("show", "qwen2.5-3b", "--rows", "64", "--ctx", "4k").stdout
    assert "fits        no\n" in text and many["advice"] in text


@pytest.mark.parametrize(
    ("name", "status"), [("a/b", ExitCode.NETWORK), ("zzzz", ExitCode.MODEL), ("./nowhere", ExitCode.MODEL)]
)
def test_what_cannot_be_shown_is_one_sentence(llmrs: Run, name: str, status: int) -> None:
    result = llmrs("show", name)
    assert (result.exit_code, result.stdout) == (status, "")
    assert len(result.stderr.splitlines()) <= 2


def test_names_of_files_cannot_touch_the_terminal(llmrs: Run, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", TinyModel())
    (folder / "\x1b[2J\nx").touch()
    shown_text = llmrs("show", str(folder)).stdout
    assert "\x1b" not in shown_text
    assert "\x1b[2J\nx" in {file["name"] for file in shown(llmrs, str(folder))["files"]}


def test_a_gated_alias_is_described_and_its_page_said(llmrs: Run, online: FakeHub) -> None:
    online.repos["meta-llama/Llama-3.2-1B-Instruct"] = replace(online.repos["a/b"], gate="licence")
    result = llmrs("show", "llama3.2-1b", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["source"] == "the table of names"
    assert f"{online.endpoint}/meta-llama" in result.stderr
    online.repos["a/b"].gate = "licence"
    refused = llmrs("show", "a/b")
    assert (refused.exit_code, refused.stdout) == (ExitCode.ACCESS, "")


def test_a_configuration_of_absurd_size_is_not_fetched(
    llmrs: Run, online: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmrs_cli.cli.look.MAX_CONFIG", 10)
    assert shown(llmrs, "a/b")["memory"] is None
    assert not any("resolve" in seen.path for seen in online.seen)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999_999, "999,999"),
        (1_000_000, "1 million"),
        (494_032_768, "494 million"),
        (7_615_487_488, "7.62 billion"),
    ],
)
def test_parameters_are_counted_as_people_do(count: int, text: str) -> None:
    assert count_text(count) == text


def test_a_model_that_is_not_whole_is_looked_up_on_the_hub(llmrs: Run, online: FakeHub) -> None:
    online.fail("/lfs/", Fault(cut_after=2000), *[Fault(status=503)] * 9)
    llmrs("pull", "a/b")
    report = shown(llmrs, "a/b")
    assert (report["source"], report["path"]) == ("the Hub", None)
    assert {file["here"] for file in report["files"]} == {True, False}
    assert llmrs("show", "a/b", "--offline").exit_code == ExitCode.NETWORK


@pytest.mark.parametrize("victim", ["config.json", "model.safetensors"])
def test_a_damaged_model_is_one_sentence(llmrs: Run, tmp_path: Path, victim: str) -> None:
    folder = write_tiny(tmp_path / "tiny", TinyModel())
    (folder / victim).write_bytes(b"{")
    result = llmrs("show", str(folder))
    assert (result.exit_code, result.stdout) == (ExitCode.MODEL, "")
    assert len(result.stderr.splitlines()) <= 2


def test_a_folder_that_is_no_model_is_one_sentence(llmrs: Run, tmp_path: Path) -> None:
    assert llmrs("show", str(tmp_path)).exit_code == ExitCode.MODEL


def test_looking_writes_nothing_into_the_model_s_folder(llmrs: Run, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", TinyModel())
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    shown(llmrs, str(folder))
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_every_alias_has_a_licence() -> None:
    assert all(licence_of(alias.repo) for alias in ALIASES.values())
    assert licence_of("Qwen/Qwen2.5-3B-Instruct-AWQ") == "qwen-research"
    assert licence_of("a/b") is None


def test_files_are_compared_with_what_the_hub_listed(llmrs: Run, online: FakeHub) -> None:
    llmrs("pull", "a/b")
    asked = len(online.seen)
    whole = llmrs("show", "a/b", "--check")
    assert whole.exit_code == 0, whole.stderr
    lines = dict(line.split() for line in whole.stdout.splitlines())
    assert set(lines.values()) == {"whole"} and "model.safetensors" in lines
    path = Path(shown(llmrs, "a/b")["path"]) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.resolve().write_bytes(content)
    damaged = llmrs("show", "a/b", "--check")
    assert damaged.exit_code == ExitCode.MODEL
    assert dict(line.split() for line in damaged.stdout.splitlines()) == {
        **lines,
        "model.safetensors": "damaged",
    }
    assert (
        "1 file changed after the download: model.safetensors. Run 'llmrs rm a/b' and 'llmrs pull a/b'."
        in (" ".join(damaged.stderr.split()))
    )
    told = json.loads(llmrs("show", "a/b", "--check", "--json").stdout)
    assert [file for file, wrong in told["damaged"].items() if wrong] == ["model.safetensors"]
    assert len(online.seen) == asked
    llmrs("rm", "a/b", "--yes")
    llmrs("pull", "a/b")
    assert llmrs("show", "a/b", "--check").exit_code == 0


def test_what_did_not_come_from_the_hub_or_is_not_here_is_not_compared(
    llmrs: Run, online: FakeHub, tmp_path: Path
) -> None:
    folder = write_tiny(tmp_path / "tiny", TinyModel())
    own = llmrs("show", str(folder), "--check")
    assert own.exit_code == ExitCode.USAGE and "did not come from the Hub" in own.stderr
    absent = llmrs("show", "a/b", "--check")
    assert absent.exit_code == ExitCode.USAGE and "llmrs pull a/b" in absent.stderr
