"""Converted and quantised copies are known by `list`, `show`, `rm`, `prune` and `du`: what they are, how large, of what."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from llmrs_cli.cli.copies import all_leftovers, copies_of, kept_copies
from llmrs_cli.cli.models import model_named
from llmrs_cli.config import directories
from llmrs_cli.errors import ExitCode
from tests.cli.conftest import Run
from tests.helpers.fake_hub import FakeHub, FakeRepo
from tests.helpers.ladder import Ladder, write_ladder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ladder(tmp_path_factory.mktemp("model") / "m", Ladder(vocab=384, awq=True))


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    """A model of the user's own, to be changed or removed."""
    return shutil.copytree(source, tmp_path / "own")


@pytest.fixture
def repo(online: FakeHub, source: Path, llmrs: Run) -> str:
    """A repository, fetched."""
    online.repos["c/awq"] = FakeRepo.of(source)
    assert llmrs("pull", "c/awq").exit_code == 0
    return "c/awq"


def convert(llmrs: Run, model: str | Path) -> Path:
    result = llmrs("convert", str(model))
    assert result.exit_code == 0, result.stderr
    return Path(result.stdout.strip())


def data(llmrs: Run, *arguments: str) -> Any:
    result = llmrs(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def leftovers(llmrs: Run) -> list[tuple[str, str]]:
    return [(entry["why"], entry["path"]) for entry in data(llmrs, "prune", "-n")["leftovers"]]


# -- list and show --------------------------------------------------------------------------------------


def test_list_has_copies_with_their_source_and_size(llmrs: Run, repo: str) -> None:
    place = convert(llmrs, repo)
    model, copy = data(llmrs, "list")
    assert (model["name"], model["kind"]) == (repo, "repository")
    assert copy == {
        "name": repo,
        "kind": "converted copy",
        "repo": None,
        "commit": None,
        "revisions": [],
        "path": str(place),
        "size": bytes_of(place),
        "unfinished": 0,
    }
    assert llmrs("list").stdout.splitlines()[2].split()[::3] == [repo, "converted"]


def test_show_has_the_copy_of_a_model_and_the_source_of_a_copy(
    llmrs: Run, folder: Path, tmp_path: Path
) -> None:
    assert data(llmrs, "show", str(folder))["converted_copies"] == []
    place = convert(llmrs, folder)
    assert data(llmrs, "show", str(folder))["converted_copies"] == [
        {"path": str(place), "size": bytes_of(place)}
    ]
    assert str(place) in llmrs("show", str(folder)).stdout
    listed = llmrs("list")
    assert listed.stdout.splitlines()[1].startswith(str(folder))
    assert listed.stderr == "", "what is here is not nothing"
    assert data(llmrs, "show", str(place))["converted_from"] == str(folder)
    llmrs("convert", str(folder), "-o", str(tmp_path / "shipped"))
    assert len(kept_copies(directories())) == 1, "folders of the user's own are not ours to list"


def test_a_path_means_the_same_from_everywhere(
    llmrs: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    convert(llmrs, f"./{folder.name}")
    monkeypatch.chdir("/")
    assert [copy.source for copy in kept_copies(directories())] == [str(folder)]
    assert leftovers(llmrs) == []


def test_show_tells_what_a_quantised_model_was_made_of(llmrs: Run, folder: Path, tmp_path: Path) -> None:
    plain = write_ladder(tmp_path / "plain", Ladder(vocab=384))
    target = str(tmp_path / "q")
    assert llmrs("quantize", str(plain), "-o", target, "--rtn").exit_code == 0
    report = data(llmrs, "show", target)
    assert (report["quantized_from"], report["converted_from"]) == ("plain", None)
    assert "from plain, by llmrs quantize" in llmrs("show", target).stdout
    assert data(llmrs, "show", str(folder))["quantized_from"] is None


def test_a_damaged_copy_is_listed_as_such(llmrs: Run, repo: str) -> None:
    place = convert(llmrs, repo)
    (place / "llmrs.json").write_text("{}")
    assert [entry["name"] for entry in data(llmrs, "list")] == [repo, None]
    assert any(
        place.name in line and line.endswith("not usable") for line in llmrs("list").stdout.splitlines()
    )
    assert leftovers(llmrs) == [("unusable converted copy", str(place))]


# -- rm ---------------------------------------------------------------------------------------------------


def test_a_model_goes_with_its_copies(llmrs: Run, repo: str) -> None:
    place = convert(llmrs, repo)
    (seen,) = data(llmrs, "rm", "-n", repo)
    assert seen["copies"] == [str(place)] and seen["size"] > bytes_of(place)
    assert llmrs("rm", "-n", repo).stdout.splitlines()[0].split() == ["NAME", "SIZE", "COMMITS", "COPIES"]
    result = llmrs("rm", "-y", repo)
    assert "Removed 'c/awq' and its converted copy, " in result.stderr
    assert data(llmrs, "list") == [] and not place.exists()


def test_a_copy_goes_alone_if_that_is_asked(llmrs: Run, repo: str) -> None:
    place = convert(llmrs, repo)
    result = llmrs("rm", "-y", "--converted", repo)
    assert "Removed the converted copy of 'c/awq', " in result.stderr
    assert not place.exists() and [entry["name"] for entry in data(llmrs, "list")] == [repo]
    again = llmrs("rm", "-y", "--converted", repo)
    assert again.exit_code == ExitCode.MODEL and "has no converted copy" in again.stderr


def test_of_a_folder_only_the_copy_goes(llmrs: Run, folder: Path) -> None:
    place = convert(llmrs, folder)
    assert llmrs("rm", "-y", str(folder)).exit_code == ExitCode.USAGE
    assert place.exists()
    os.utime(folder / "config.json")  # another identity: the copy is found by the folder's name
    assert llmrs("rm", "-y", "--converted", str(folder)).exit_code == 0
    assert folder.exists() and not place.exists()


def test_a_copy_whose_model_is_gone_can_be_named(llmrs: Run, repo: str) -> None:
    place = convert(llmrs, repo)
    shutil.rmtree(directories().hub)
    assert llmrs("rm", "-y", repo).exit_code == 0
    assert not place.exists()


def test_copies_of_other_models_stay(llmrs: Run, repo: str, folder: Path) -> None:
    other, own = convert(llmrs, folder), convert(llmrs, repo)
    assert [copy.path for copy in copies_of(model_named(repo), directories())] == [own]
    llmrs("rm", "-y", repo)
    assert other.exists()


# -- prune and du -----------------------------------------------------------------------------------------


def test_a_copy_in_use_is_no_leftover(llmrs: Run, repo: str, folder: Path) -> None:
    convert(llmrs, repo)
    convert(llmrs, folder)
    assert leftovers(llmrs) == []


def test_a_copy_goes_when_its_model_has_changed_or_gone(llmrs: Run, repo: str, folder: Path) -> None:
    first, second = convert(llmrs, repo), convert(llmrs, folder)
    os.utime(folder / "config.json", ns=(1, 1))
    assert leftovers(llmrs) == [("converted copy without its model", str(second))]
    shutil.rmtree(directories().hub)
    why = "converted copy without its model"
    assert sorted(leftovers(llmrs)) == sorted([(why, str(first)), (why, str(second))])
    freed = data(llmrs, "du")["leftovers"]
    assert freed == bytes_of(first) + bytes_of(second)
    assert data(llmrs, "prune", "-y", "-q")["size"] == freed
    assert not first.exists() and not second.exists()


def test_a_copy_that_another_name_still_finds_stays(llmrs: Run, repo: str) -> None:
    llmrs("alias", "set", "mine", repo)
    convert(llmrs, "mine")
    llmrs("alias", "rm", "mine")
    assert leftovers(llmrs) == []


def test_parts_of_a_conversion_that_was_killed_go_after_an_hour(llmrs: Run, repo: str) -> None:
    place = convert(llmrs, repo)
    part = place.parent / f".{place.name}.part-x1"
    place.rename(part)
    assert leftovers(llmrs) == []
    (found,) = all_leftovers(directories(), now=part.stat().st_mtime + 4000)
    assert (found.path, found.why, found.size) == (part, "unfinished conversion", bytes_of(part))
