"""Documents cannot drift: man pages equal a fresh build, every command is in the README, and everything public says what it is."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from llmrs_cli.cli.manpage import pages
from llmrs_cli.cli.root import COMMANDS, root

ROOT = Path(__file__).parent.parent


def test_man_pages_equal_a_fresh_build() -> None:
    made = pages(root)
    kept = {path.name: path.read_text("utf-8") for path in (ROOT / "man").glob("*.1")}
    assert set(kept) == set(made), "run 'make docs'"
    for name, source in made.items():
        assert kept[name] == source, f"man/{name} is stale: run 'make docs'"


@pytest.mark.skipif(shutil.which("man") is None, reason="needs the program man")
def test_man_reads_every_page_without_a_warning() -> None:
    for page in sorted((ROOT / "man").glob("*.1")):
        run = subprocess.run(
            ["man", "--warnings", "-E", "UTF-8", "-l", str(page)], capture_output=True, text=True, timeout=30
        )
        assert run.returncode == 0, page.name
        assert run.stderr == "", page.name


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"llmrs {name}" not in text] == []


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_modules_and_what_they_offer_say_what_they_are() -> None:
    """Every module, public function and public class at the top of a module has a docstring."""
    bare = []
    for path in sorted((ROOT / "llmrs_cli").rglob("*.py")):
        module = ast.parse(path.read_text("utf-8"))
        offered = [
            node
            for node in module.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
        ]
        if module.body and not ast.get_docstring(module):
            bare.append(str(path))
        bare += [f"{path}:{node.lineno} {node.name}" for node in offered if not ast.get_docstring(node)]
    assert bare == []
