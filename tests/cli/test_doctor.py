"""`llmrs doctor`: what it finds, what it measures, and whether short names are what the Hub has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmrs_cli.cli import doctor
from llmrs_cli.cli.alias_check import check_alias
from llmrs_cli.cli.bandwidth import known_bandwidth
from llmrs_cli.engine.backends.registry import BackendInfo, notice_of
from llmrs_cli.errors import DoesNotFitError, EngineFault, ExitCode
from llmrs_cli.hub.access import HubAccess
from llmrs_cli.hub.aliases import ALIASES, Alias
from tests.cli.conftest import MakeLadder, Run
from tests.helpers.fake_hub import FakeHub, FakeRepo


@pytest.fixture(autouse=True)
def small_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure memory with little of it: the figure means nothing here."""
    monkeypatch.setattr("llmrs_cli.cli.measure.READ_BYTES", 1 << 20)
    monkeypatch.setattr("llmrs_cli.cli.measure.SHAPES", {"reference": (512, 1)})


@pytest.fixture
def only_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiled backend, so that nothing is compiled here."""
    found = [
        BackendInfo("cuda", "there is a GPU, but the CUDA packages are not installed.", "Install them."),
        BackendInfo("reference"),
    ]
    monkeypatch.setattr("llmrs_cli.engine.backends.registry.available", lambda: found)


@pytest.mark.usefixtures("only_reference")
def test_it_is_well_without_hub_and_gpu(llmrs: Run) -> None:
    result = llmrs("doctor", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    by_name = {backend["name"]: backend for backend in report["backends"]}
    assert (by_name["cuda"]["usable"], by_name["cuda"]["ok"]) == (False, None)
    assert (by_name["reference"]["usable"], by_name["reference"]["ok"]) == (True, True)
    assert by_name["reference"]["achieved"] is None, "slow by design"
    assert report["hub"].startswith("Not asked")
    assert (report["hub_token"], report["default_model_here"], report["aliases"]) == (False, False, [])
    assert "Install them." in report["advice"]
    assert report["directories"]["cache"].endswith("llmrs")


@pytest.mark.usefixtures("only_reference")
def test_it_speaks_to_people(llmrs: Run) -> None:
    result = llmrs("doctor")
    assert result.exit_code == 0
    assert "reference ok" in result.stdout
    assert "To do       Install them." in result.stdout


@pytest.mark.usefixtures("only_reference")
def test_parts_that_were_left_out_are_named(llmrs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"no.such.module": "Install x.", "json": "Install y."}
    monkeypatch.setattr(doctor, "optional_parts", lambda: parts)
    advice = json.loads(llmrs("doctor", "--json").stdout)["advice"]
    assert "Install x." in advice and "Install y." not in advice


@pytest.mark.usefixtures("only_reference")
def test_it_fails_if_a_backend_computes_wrongly(llmrs: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(device: str) -> float:
        raise EngineFault("It computes wrongly.")

    monkeypatch.setattr("llmrs_cli.engine.verify.self_test", wrong)
    result = llmrs("doctor")
    assert result.exit_code == ExitCode.ENGINE_FAULT
    assert "WRONG" in result.stdout
    assert "reference" in result.stderr


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend whose self-test goes well and which is as fast as the reference."""
    from llmrs_cli.cli.measure import achieved

    monkeypatch.setattr("llmrs_cli.engine.verify.self_test", lambda device: 1e-7)
    monkeypatch.setattr("llmrs_cli.cli.measure.achieved", lambda device: achieved("reference"))


@pytest.mark.usefixtures("compiled")
def test_a_backend_says_how_fast_it_reads_and_the_memory_s_speed_is_remembered() -> None:
    report = doctor.examine_backend(BackendInfo("cpu"))
    assert report.ok
    assert report.achieved is not None and report.bandwidth is not None
    assert report.achieved > 0 and report.bandwidth == known_bandwidth("cpu")
    assert " GB/s (" in report.detail


@pytest.mark.usefixtures("compiled")
def test_a_machine_without_room_for_the_measurement_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(device: str) -> float:
        raise DoesNotFitError("no room")

    monkeypatch.setattr("llmrs_cli.cli.measure.achieved", no_room)
    report = doctor.examine_backend(BackendInfo("cpu"))
    assert (report.ok, report.achieved) == (True, None)
    assert "GB/s" not in report.detail


@pytest.mark.usefixtures("compiled")
def test_a_backend_that_fails_on_the_larger_model_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str) -> float:
        raise EngineFault("A step failed.")

    monkeypatch.setattr("llmrs_cli.cli.measure.achieved", broken)
    report = doctor.examine_backend(BackendInfo("cpu"))
    assert (report.ok, report.detail) == (False, "A step failed.")


@pytest.mark.usefixtures("compiled")
def test_compiled_loops_that_are_not_kept_are_mentioned_by_doctor_and_by_a_chat(
    environment: Path, llmrs: Run, ladder: MakeLadder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.examine_backend(BackendInfo("cpu")).notice is None
    cache = environment / ".cache/llmrs/simd"
    cache.chmod(0o777)
    report = doctor.examine_backend(BackendInfo("cpu"))
    assert report.ok and report.notice is not None and "open to other users" in report.notice
    assert notice_of("reference") is None
    monkeypatch.setattr("llmrs_cli.engine.backends.registry.notice_of", lambda device: report.notice)
    assert report.notice in llmrs("chat", ladder(), "-p", "Hi", "-t", "0").stderr


def test_a_hub_that_cannot_be_reached_is_a_finding_not_a_failure() -> None:
    access = HubAccess(Path("h"), Path("c"), endpoint="http://127.0.0.1:9")
    assert "127.0.0.1" in doctor.why_unreachable(access)


@pytest.mark.usefixtures("only_reference")
@pytest.mark.parametrize(
    ("token", "said"), [("hf_x", "with a token"), ("", "without a token"), ("a b", "without a token")]
)
def test_a_token_is_mentioned_and_never_shown(
    llmrs: Run, online: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str, said: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nonexistent")
    result = llmrs("doctor")
    assert f"{online.endpoint}: answers; {said}" in result.stdout
    assert not token or token not in result.stdout


# -- short names ----------------------------------------------------------------------------------------


QWEN = ALIASES["qwen2.5-0.5b"]


def repo_of(alias: Alias, **changes: object) -> FakeRepo:
    """The repository as the table says it is, apart from `changes` in its configuration."""
    config = json.dumps({**alias.config, **changes}).encode()
    return FakeRepo({"config.json": config, "model.safetensors": b"x"}, card={"license": "apache-2.0"})


@pytest.mark.usefixtures("only_reference")
def test_every_short_name_is_compared(llmrs: Run, online: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name: ALIASES[name] for name in ("smollm2-135m", "qwen2.5-0.5b", "llama3.2-1b")}
    monkeypatch.setattr("llmrs_cli.hub.aliases.ALIASES", names)
    online.repos = {alias.repo: repo_of(alias) for alias in names.values()}
    online.repos[names["llama3.2-1b"].repo].gate = "licence"
    result = llmrs("doctor", "--aliases", "--json")
    assert result.exit_code == 0, result.stderr
    found = {alias["name"]: alias for alias in json.loads(result.stdout)["aliases"]}
    assert {name: alias["ok"] for name, alias in found.items()} == {
        "smollm2-135m": True,
        "qwen2.5-0.5b": True,
        "llama3.2-1b": None,
    }
    assert found["qwen2.5-0.5b"]["detail"].startswith("commit ")
    online.repos[QWEN.repo] = repo_of(QWEN, num_hidden_layers=25)
    result = llmrs("doctor", "--aliases")
    assert result.exit_code == 1
    assert "WRONG" in result.stdout and "layers is 25, not 24" in result.stdout
    assert "qwen2.5-0.5b" in result.stderr


@pytest.mark.parametrize(
    ("repo", "ok", "detail"),
    [
        (repo_of(QWEN), True, "commit"),
        (repo_of(QWEN, rope_theta=1e4), False, "rope"),
        (replace(repo_of(QWEN), card={"license": "mit"}), False, "its licence is mit, not apache-2.0"),
        (replace(repo_of(QWEN), card={}), True, "commit"),
        (repo_of(QWEN, quantization_config=ALIASES["qwen2.5-0.5b-awq"].config["quantization_config"]), False,
         "it is quantised"),
        (FakeRepo({"config.json": b"{", "model.safetensors": b"x"}), False, "model_type"),
        (FakeRepo({"config.json": b"{}"}), False, "no weights"),
    ],
)  # fmt: skip
def test_what_the_hub_has_otherwise_is_named(online: FakeHub, repo: FakeRepo, ok: bool, detail: str) -> None:
    online.repos = {QWEN.repo: repo}
    report = check_alias(QWEN, HubAccess.from_environment(offline=False))
    assert report.ok is ok
    assert detail in report.detail


@pytest.mark.parametrize("gated", [True, False])
def test_a_gate_is_no_fault_where_the_table_knows_of_it(online: FakeHub, gated: bool) -> None:
    online.repos = {QWEN.repo: replace(repo_of(QWEN), gate="licence")}
    report = check_alias(replace(QWEN, gated=gated), HubAccess.from_environment(offline=False))
    assert report.ok is (None if gated else False)
    assert "gated" in report.detail


@pytest.mark.usefixtures("only_reference")
def test_without_a_hub_short_names_cannot_be_compared(llmrs: Run) -> None:
    assert llmrs("doctor", "--aliases").exit_code == ExitCode.NETWORK
