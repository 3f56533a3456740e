"""Every command in the README runs, as written.

Aliases of the Hub resolve against a fake Hub on loopback that serves a small random checkpoint under the
real repository's name; the built-in model is the real one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_models import readme_table
from tests.helpers.fake_hub import fake_hub
from tests.helpers.served import served
from tests.helpers.smollm2 import require_smollm2
from tests.helpers.tiny_model import write_tiny

ROOT = Path(__file__).parent.parent
ROWS = [{"id": number, "prompt": f"Say {number}.", "max_tokens": 4} for number in range(3)]
REQUESTS = [
    {
        "custom_id": f"r{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    }
    for number in range(3)
]


def commands() -> list[tuple[str, list[str]]]:
    """The lines after `$ ` in console blocks, with the output shown below each."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    found: list[tuple[str, list[str]]] = []
    for line in "".join(blocks).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line:
            found[-1][1].append(line)
    return found


def test_the_readme_shows_commands() -> None:
    assert len(commands()) >= 5


@pytest.mark.parametrize(("command", "shown"), commands(), ids=lambda value: str(value)[:60])
def test_a_command_of_the_readme_runs_as_written(command: str, shown: list[str], tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in REQUESTS))
    model = write_tiny(tmp_path / "model")
    with fake_hub({"Qwen/Qwen2.5-3B-Instruct": model}) as hub:
        env = {
            **os.environ,
            **hub.env(tmp_path),
            "LLMRS_CACHE_DIR": str(require_smollm2().parent.parent),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        run = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
        )
    cut_short = command.endswith("| head -1")
    assert run.returncode == 0 or (cut_short and run.returncode == 141), run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout.splitlines()[: len(shown)] == shown


def test_one_alias_chats_runs_a_batch_and_serves_with_one_download(tmp_path: Path) -> None:
    """The commands by which a model of the Hub is used, the server's as it stands in the README but for its port."""
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("llmrs serve ")]
    model, *flags = line.split()[2:]
    assert flags == ["--port", "8000"]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with fake_hub({"Qwen/Qwen2.5-3B-Instruct": write_tiny(tmp_path / "model")}) as hub:
        env = {**os.environ, **hub.env(tmp_path), "LLMRS_DEVICE": "reference"}
        for arguments in (
            ("chat", model, "-p", "Hi", "--max-tokens", "4"),
            ("batch", "prompts.jsonl", "-o", "answers.jsonl", "-m", model),
        ):
            run = subprocess.run(
                [sys.executable, "-m", "llmrs_cli", *arguments],
                cwd=tmp_path,
                env={**env, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=110,
            )
            assert run.returncode == 0, run.stderr
        assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == len(ROWS)
        with served(Path(model), tmp_path, env=hub.env(tmp_path)) as server:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
            answer = server.post("/v1/chat/completions", {"model": model, **body}).json
        assert answer["usage"]["completion_tokens"] == 4
        fetched = [seen.path for seen in hub.seen if "safetensors" in seen.path]
        assert len(fetched) == len(set(fetched)), "weights are fetched once"


def test_figures_of_a_gpu_are_those_that_were_recorded() -> None:
    recorded = json.loads((ROOT / "benchmarks" / "gpu-models.json").read_text())
    assert readme_table(recorded["records"]) in (ROOT / "README.md").read_text("utf-8")
