"""The words of make: what they run, and what they say where Python is missing, too old or cut short.

Interpreters are small shell scripts here; nothing is installed and no network is used.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKE = shutil.which("make")
TOOLS = ("sh", "bash", "touch", "mkdir", "cat", "echo", "env")
WORDS = ("chat", "test", "check", "docs", "bench", "test-gpu")

pytestmark = pytest.mark.skipif(MAKE is None, reason="needs the program make")


def python(folder: Path, name: str, *, version: tuple[int, int], whole: bool = True) -> None:
    """An interpreter that knows its version and whether `venv` can be imported, and makes empty ones."""
    supported = (3, 11) <= version <= (3, 13)
    path = folder / name
    path.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"  *version_info*) exit {int(not supported)};;\n"
        f"  *'import venv'*) exit {int(not whole)};;\n"
        f"  '-m venv'*) echo made by {name}; mkdir -p \"$3/bin\";"
        ' echo "#!/bin/sh" > "$3/bin/python"; /bin/chmod +x "$3/bin/python"; exit 0;;\n'
        "esac\nexit 9\n"
    )
    path.chmod(0o755)


def make(folder: Path, *words: str) -> tuple[int, str, str]:
    """Run make with only the interpreters of `folder` on the path; status, stdout, stderr."""
    for tool in TOOLS:
        place = shutil.which(tool)
        if place is not None and not (folder / tool).exists():
            (folder / tool).symlink_to(place)
    assert MAKE is not None
    run = subprocess.run(
        [MAKE, "-s", "-C", str(ROOT), f"VENV={folder / 'venv'}", *words],
        env={"PATH": str(folder), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return run.returncode, run.stdout, run.stderr


def sentence(stderr: str) -> str:
    """The one line that is not make's own."""
    (line,) = [line for line in stderr.splitlines() if not line.startswith("make")]
    return line


def test_without_a_supported_python_one_sentence_says_which(tmp_path: Path) -> None:
    python(tmp_path, "python3", version=(3, 9))
    python(tmp_path, "python3.13", version=(3, 14))
    status, out, err = make(tmp_path, "chat")
    assert (status, out) == (2, "")
    assert "needs Python 3.11, 3.12 or 3.13" in sentence(err)
    assert "make PYTHON=" in sentence(err)


def test_without_any_python_it_is_the_same_sentence(tmp_path: Path) -> None:
    status, _, err = make(tmp_path, "test")
    assert status == 2
    assert "needs Python 3.11, 3.12 or 3.13" in sentence(err)


def test_without_the_venv_module_one_sentence_says_how_to_get_it(tmp_path: Path) -> None:
    python(tmp_path, "python3", version=(3, 11), whole=False)
    status, out, err = make(tmp_path, "chat")
    assert (status, out) == (2, "")
    assert sentence(err).startswith("python3 has no venv module")
    assert "apt install python3-venv" in sentence(err)
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("versions", "named", "chosen"),
    [
        ({"python3": (3, 12), "python3.13": (3, 13)}, None, "python3"),
        ({"python3": (3, 9), "python3.11": (3, 11), "python3.12": (3, 12)}, None, "python3.12"),
        ({"python3": (3, 12), "mine": (3, 11)}, "mine", "mine"),
    ],
)
def test_the_first_supported_python_wins(
    tmp_path: Path, versions: dict[str, tuple[int, int]], named: str | None, chosen: str
) -> None:
    for name, version in versions.items():
        python(tmp_path, name, version=version)
    said = [] if named is None else [f"PYTHON={named}"]
    status, out, err = make(tmp_path, str(tmp_path / "venv" / "bin" / "python"), *said)
    assert (status, out.strip(), err) == (0, f"made by {chosen}", "")


def test_every_word_of_the_readme_is_a_word_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(re.search(rf"^{word}:", makefile, re.M) for word in WORDS)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert all(f"`{word}`" in readme for word in WORDS)
    assert re.search(r"^\.DEFAULT_GOAL := chat$", makefile, re.M)


def test_chat_asks_one_fixed_question_and_goes_on_only_at_a_terminal(tmp_path: Path) -> None:
    """The program is a script that writes down how it is called."""
    bin = tmp_path / "venv" / "bin"
    bin.mkdir(parents=True)
    (bin / "python").write_text("#!/bin/sh\n")
    (bin / "llmrs").write_text(f"#!/bin/sh\nprintf '%s|' \"$@\" >> {tmp_path / 'calls'}\necho Paris\n")
    for program in ("python", "llmrs"):
        (bin / program).chmod(0o755)
    (bin.parent / "core.stamp").touch()
    later = (ROOT / "pyproject.toml").stat().st_mtime + 10
    os.utime(bin.parent / "core.stamp", (later, later))
    status, out, err = make(tmp_path, "chat")
    assert (status, out.splitlines(), err) == (0, ["> What is the capital of France?", "Paris"], "")
    assert (tmp_path / "calls").read_text() == (
        "chat|smollm2-135m|-p|What is the capital of France?|--temperature|0|--no-stdin|"
    )
