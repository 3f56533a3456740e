"""What this machine offers to llmrs, what is missing, and what to type to get it.

llmrs doctor [--json]
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from llmrs_cli import __version__
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import EngineFault, LlmrsError

if TYPE_CHECKING:
    from llmrs_cli.engine.backends.registry import BackendInfo
    from llmrs_cli.hub.access import HubAccess


@dataclass(frozen=True, slots=True)
class BackendReport:
    """One backend, and how its self-test went."""

    name: str
    usable: bool
    detail: str
    """Why it cannot be used, or what the self-test says."""
    ok: bool | None = None
    """Whether it computes what the reference does; None if it was not tried."""
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `llmrs doctor` says; `--json` prints these fields."""

    llmrs: str
    python: str
    platform: str
    threads: int
    memory_available: int
    """Bytes."""
    backends: list[BackendReport]
    directories: dict[str, str]
    hub: str
    """Empty if it can be reached, else why not."""
    hub_endpoint: str
    default_model: str
    default_model_here: bool
    advice: list[str] = field(default_factory=list)


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--offline", is_flag=True, help="Do not ask whether the Hub can be reached.")
def command(as_json: bool, offline: bool) -> None:
    """Report what was found here, and what is missing.

    Every backend that can run computes a small random model and is compared with the reference. The status
    is 0 without a GPU and without a network; it is 8 if a backend that can run computes wrongly.

    \b
      llmrs doctor
      llmrs doctor --json | jq .backends
    """
    terminal = Terminal.standard()
    with terminal.working("Looking around"):
        report = examine(offline=offline)
    if as_json:
        terminal.data(json.dumps(asdict(report)))
    else:
        for line in describe(report):
            terminal.data(line)
    wrong = [backend.name for backend in report.backends if backend.ok is False]
    if wrong:
        raise EngineFault(
            f"The self-test failed on {', '.join(wrong)}.", hint="Use another --device, and report it."
        )


def examine(*, offline: bool) -> Report:
    """Look at this machine."""
    from llmrs_cli.config import directories, load_settings
    from llmrs_cli.engine.backends.host_memory import available_bytes
    from llmrs_cli.engine.backends.registry import available
    from llmrs_cli.hub.access import HubAccess
    from llmrs_cli.hub.aliases import BUILT_IN

    settings = load_settings({"offline": offline or None})
    access = HubAccess.from_environment(offline=settings.offline.value)
    backends = [examine_backend(info) for info in available()]
    here = _built_in_is_here(access)
    report = Report(
        llmrs=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_available=available_bytes(),
        backends=backends,
        directories={name: str(path) for name, path in asdict(directories()).items()},
        hub=why_unreachable(access),
        hub_endpoint=access.endpoint,
        default_model=settings.model.value or BUILT_IN,
        default_model_here=here,
    )
    report.advice.extend(_advice(report))
    return report


def examine_backend(info: BackendInfo) -> BackendReport:
    """Whether a backend can run and, if so, whether it is right."""
    if not info.usable:
        return BackendReport(info.name, False, info.reason or "", hint=info.hint)
    from llmrs_cli.engine.verify import self_test

    try:
        error = self_test(info.name)
    except LlmrsError as failure:
        return BackendReport(info.name, True, failure.message, ok=False)
    return BackendReport(info.name, True, f"self-test: relative error {error:.1e}", ok=True)


def why_unreachable(access: HubAccess) -> str:
    """Why the Hub cannot be reached, in one sentence; empty if it answers."""
    from llmrs_cli.hub.aliases import ALIASES, BUILT_IN
    from llmrs_cli.hub.reach import reach

    if access.offline:
        return "Not asked: the network is not to be used."
    try:
        reach(access, ALIASES[BUILT_IN].repo)
    except LlmrsError as error:
        return error.message
    return ""


def _built_in_is_here(access: HubAccess) -> bool:
    from llmrs_cli.hub.builtin import PACKAGE

    file = access.cache / "models" / PACKAGE.member.rpartition("/")[2]
    return file.is_file() and file.stat().st_size == PACKAGE.size


def _advice(report: Report) -> Iterator[str]:
    for backend in report.backends:
        if backend.hint is not None:
            yield backend.hint
    if not report.default_model_here and report.hub:
        yield "The built-in model is fetched on first use: that needs the network once."


def describe(report: Report) -> Iterator[str]:
    """The report for people, a line at a time."""
    yield f"llmrs {report.llmrs}, Python {report.python}, {report.platform}"
    yield f"{report.threads} threads, {report.memory_available / 2**30:.1f} GiB of memory free"
    yield "Backends"
    for backend in report.backends:
        mark = "no" if not backend.usable else "ok" if backend.ok else "WRONG"
        yield f"  {backend.name:<10}{mark:<6}{backend.detail}"
    yield f"Hub         {report.hub_endpoint}: {report.hub or 'answers'}"
    here = "is on this machine" if report.default_model_here else "is not on this machine yet"
    yield f"Built-in    {report.default_model} {here}"
    yield "Folders"
    for name, path in report.directories.items():
        yield f"  {name:<12}{path}"
    for line in report.advice:
        yield f"To do       {line}"
