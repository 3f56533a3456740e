"""From a name to a model: the Hub path of every command, devices, defaults, and what is announced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrs_cli.cli import models
from llmrs_cli.cli.models import choose_device, choose_name
from llmrs_cli.cli.options import ModelOptions
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import Settings
from llmrs_cli.engine.backends.registry import BackendInfo
from llmrs_cli.errors import ExitCode, UsageError
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.fake_hub import FakeHub, fake_hub

QWEN = "Qwen/Qwen2.5-3B-Instruct"


@pytest.fixture
def hub(ladder: MakeLadder) -> Iterator[FakeHub]:
    """A Hub that serves a scripted model under the name of a real one."""
    with fake_hub({QWEN: Path(ladder())}) as served:
        yield served


def test_an_alias_is_fetched_once_and_answers_in_chat_and_batch(
    llmrs: Run, hub: FakeHub, tmp_path: Path
) -> None:
    env = hub.env(tmp_path)
    first = llmrs("chat", "qwen2.5-3b", "-p", "Hi", "-t", "0", env=env)
    assert (first.exit_code, first.stdout) == (0, "Hello world\n"), first.stderr
    assert "Fetching" in first.stderr
    sent = hub.sent
    rows = llmrs("batch", "-", "-m", "qwen2.5-3b", "-t", "0", "-q", stdin='{"prompt":"Hi"}', env=env)
    assert (json.loads(rows.stdout)["text"], rows.stderr) == ("Hello world", "")
    offline = llmrs("chat", "qwen2.5-3b", "-p", "Hi", "-t", "0", "--offline", env=env)
    assert offline.stdout == "Hello world\n"
    assert hub.sent == sent


def test_a_model_that_does_not_fit_is_refused_before_its_weights(
    llmrs: Run, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "free_bytes", lambda device: 1 << 20)
    result = llmrs("chat", "qwen2.5-3b", "-p", "Hi", env=hub.env(tmp_path))
    assert (result.exit_code, result.stdout) == (6, "")
    assert not any("safetensors" in seen.path for seen in hub.seen)


def test_the_commit_that_answers_is_told(llmrs: Run, online: FakeHub) -> None:
    commit = online.repos["a/b"].commit
    for line in ("-p Hi", "-p Hi --n 2", "-p Hi --choices a,b"):
        assert json.loads(llmrs("chat", "a/b@main", *line.split(), "--json").stdout)["commit"] == commit
    assert (
        f"a/b@main at commit {commit[:12]} on reference; "
        in llmrs("chat", "a/b@main", "-p", "Hi", "-v").stderr
    )


@pytest.mark.parametrize(("args", "asked"), [(["--revision", "v1"], "v1"), ([], "main")])
def test_a_revision_is_asked_for(
    llmrs: Run, hub: FakeHub, tmp_path: Path, args: list[str], asked: str
) -> None:
    llmrs("chat", QWEN, "-p", "Hi", *args, env=hub.env(tmp_path))
    assert any(f"/revision/{asked}" in seen.path for seen in hub.seen)


# -- devices and defaults -----------------------------------------------------------------------------


def quiet_terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    del capsys  # only so that stderr is caught
    return Terminal.standard()


@pytest.mark.parametrize(
    ("found", "device", "said"),
    [
        ([BackendInfo("cuda"), BackendInfo("cpu")], "cuda", ""),
        ([BackendInfo("cuda", "no NVIDIA GPU is visible."), BackendInfo("cpu")], "cpu", ""),
        (
            [BackendInfo("cuda", "there is a GPU, but no CUDA package.", "Type this."), BackendInfo("cpu")],
            "cpu",
            "llmrs: There is a GPU, but no CUDA package. Type this.\n",
        ),
    ],
)
def test_the_best_device_is_taken_and_a_better_one_mentioned(
    found: list[BackendInfo],
    device: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llmrs_cli.engine.backends.registry.available", lambda: found)
    assert choose_device("auto", quiet_terminal(capsys)) == device
    assert capsys.readouterr().err == said


def test_a_device_that_is_asked_for_is_taken_if_it_can_be_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmrs_cli.engine.backends.registry.probe", lambda name, index: BackendInfo(name))
    assert choose_device("cuda:3", quiet_terminal(capsys)) == "cuda:3"


@pytest.mark.parametrize(
    "line", ["chat -p Hi", "batch -", "serve", "eval -", "show", "pull", "verify", "bench", "quantize -o x"]
)
def test_a_gpu_that_is_not_there_is_refused_by_every_command(
    llmrs: Run, ladder: MakeLadder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = BackendInfo("cuda", "no NVIDIA GPU is visible.", "Type this.")
    monkeypatch.setattr("llmrs_cli.engine.backends.registry.probe", lambda name, index=0: missing)
    command, *rest = line.split()
    model = [] if command == "pull" else ["-m", ladder()]
    if command in ("show", "pull"):
        model = [ladder() if command == "show" else "a/b"]
    result = llmrs(command, *rest, *model, "--device", "cuda:1", stdin='{"prompt": "Hi"}\n')
    assert (result.exit_code, result.stdout) == (2, "")
    assert "The device 'cuda:1' cannot be used: no NVIDIA GPU is visible." in result.stderr
    assert "Type this." in result.stderr


@pytest.mark.parametrize(
    ("device", "free", "name"),
    [("cpu", 1 << 40, "smollm2-135m"), ("cuda", 1 << 40, "qwen2.5-3b"), ("cuda", 1 << 30, "smollm2-135m")],
)
def test_the_default_model_suits_the_device(
    device: str, free: int, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert choose_name(Settings(), None, device, free, quiet_terminal(capsys)).text == name
    assert f"using {name} on {device}" in capsys.readouterr().err


def test_two_revisions_are_one_too_many(capsys: pytest.CaptureFixture[str], llmrs: Run) -> None:
    assert llmrs("chat", f"{QWEN}@v1", "--revision", "v2", "-p", "Hi").exit_code == 2


def test_a_terminal_as_stdin_is_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmrs_cli.batch.source import Source
    from llmrs_cli.cli.batch_job import reader_of

    class Typing:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Typing())
    with pytest.raises(UsageError, match="terminal"):
        reader_of(Source(path=None))


def test_a_context_that_memory_cut_is_said(
    llmrs: Run, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ladder()
    assert "Memory allows" not in llmrs("chat", model, "-p", "Hi", "-t", "0").stderr
    monkeypatch.setattr("llmrs_cli.engine.memory._fitting_context", lambda usual, room: usual // 2)
    for command in (["chat", model, "-p", "Hi"], ["batch", "-", "-m", model]):
        result = llmrs(*command, "-t", "0", stdin='{"prompt": "Hi"}')
        assert result.exit_code == 0, result.stderr
        assert "llmrs: Memory allows a context of 1024 tokens rather than 2048; " in result.stderr
    assert "Memory allows" not in llmrs("chat", model, "-p", "Hi", "-t", "0", "--ctx", "256").stderr


@pytest.mark.parametrize(
    ("asked", "bytes_"), [(None, None), (5 << 30, 5 << 30), (0.5, 32 << 30), (1.0, int(0.97 * (64 << 30)))]
)
def test_memory_is_asked_for_in_bytes_or_as_a_share(asked: int | float | None, bytes_: int | None) -> None:
    options = ModelOptions(None, None, None, None, False, None, asked)
    assert models.asked_memory(options, 64 << 30) == bytes_


def test_what_was_asked_of_the_engine_reaches_it(
    llmrs: Run, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: dict[str, object] = {}

    def opened(path: Path, **wishes: object) -> object:
        heard.update(wishes)
        raise UsageError("Far enough.")

    monkeypatch.setattr("llmrs_cli.text.generate.TextEngine.open", opened)
    llmrs("chat", ladder(), "-p", "Hi", "--gpu-memory", "2GiB", "--deterministic", "--quantize-head")
    assert (heard["memory"], heard["deterministic"], heard["small_head"]) == (2 << 30, True, True)


def test_what_does_not_fit_names_the_flags_that_change_it(llmrs: Run, ladder: MakeLadder) -> None:
    result = llmrs("chat", ladder(), "-p", "Hi", "--ctx", "2k", "--gpu-memory", "1MiB")
    assert (result.exit_code, result.stdout) == (ExitCode.DOES_NOT_FIT, "")
    assert "A context of 2048 tokens does not fit" in result.stderr
    assert "(--ctx)" in result.stderr and "(--gpu-memory)" in result.stderr


def test_an_interrupt_while_a_model_loads_ends_quietly(
    llmrs: Run, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmrs_cli.engine.weights.load.load_model", interrupted)
    for command in (["chat", ladder(), "-p", "Hi"], ["run", ladder(), "Hi"], ["batch", "-", "-m", ladder()]):
        result = llmrs(*command, stdin='{"prompt": "Hi"}')
        assert (result.exit_code, result.stdout) == (130, "")
        assert "Traceback" not in result.stderr and "wrong" not in result.stderr
