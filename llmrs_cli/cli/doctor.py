"""What this machine offers to llmrs, what is missing, and what to type to get it.

llmrs doctor [--json] [--aliases]
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from llmrs_cli import __version__
from llmrs_cli.cli.bandwidth import remember_bandwidth, threads
from llmrs_cli.cli.report import tell
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import DoesNotFitError, EngineFault, LlmrsError, UsageError
from llmrs_cli.extras import install
from llmrs_cli.kernels.loader import ARCHITECTURES

if TYPE_CHECKING:
    from llmrs_cli.cli.alias_check import AliasReport
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
    notice: str | None = None
    """What else there is to know about it."""
    bandwidth: float | None = None
    """Bytes a second that a plain loop moves in its memory; None: not measured."""
    achieved: float | None = None
    """Bytes a second that it reads while it draws one answer."""


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
    hub_token: bool
    """Whether there is a token for gated and private models."""
    default_model: str
    default_model_here: bool
    advice: list[str] = field(default_factory=list)
    aliases: list[AliasReport] = field(default_factory=list)
    """Short names that were compared with the Hub."""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--offline", is_flag=True, help="Do not ask whether the Hub can be reached.")
@click.option("--aliases", is_flag=True, help="Compare every short name with the Hub.")
@click.option("--build-kernels", is_flag=True, help="Only compile every CUDA kernel ahead of its first use.")
@click.option(
    "--arch",
    type=click.Choice(ARCHITECTURES),
    metavar="ARCH",
    help=f"Build for this architecture, not the GPU that is here: {', '.join(ARCHITECTURES)}.",
)
@click.option("--tuning", is_flag=True, help="Only show what was chosen by measuring on the GPUs here.")
def command(
    as_json: bool, offline: bool, aliases: bool, build_kernels: bool, arch: str | None, tuning: bool
) -> None:
    """Report what was found here, and what is missing.

    Every backend that can run computes a small random model and is compared with the reference, then a
    larger one, to see how much of the memory's speed it reaches; a conversation shows its own share from then
    on. The status is 0 without a GPU and without a network; it is 8 if a backend that can run computes
    wrongly, and with --aliases 1 if a short name is not what it should be.

    \b
      llmrs doctor
      llmrs doctor --json | jq .backends
      llmrs doctor --build-kernels --arch sm_90a
    """
    terminal = Terminal.standard()
    if build_kernels or tuning:
        _about_kernels(build_kernels, arch, tuning, terminal)
        return
    if arch is not None:
        raise UsageError("--arch is for --build-kernels.", hint="Add --build-kernels, or leave it out.")
    with terminal.working("Looking around") as status:
        report = examine(offline=offline)
        if aliases:
            status.say("Asking the Hub for every short name")
            report.aliases.extend(_aliases(offline))
    tell(report, describe, terminal, as_json=as_json)
    wrong = [backend.name for backend in report.backends if backend.ok is False]
    if wrong:
        raise EngineFault(
            f"The self-test failed on {', '.join(wrong)}.", hint="Use another --device, and report it."
        )
    stale = [alias.name for alias in report.aliases if alias.ok is False]
    if stale:
        raise LlmrsError(f"Not what they should be: {', '.join(stale)}.", hint="Report it.")


def _about_kernels(build: bool, arch: str | None, tuning: bool, terminal: Terminal) -> None:
    from llmrs_cli.cli.kernel_build import build_kernels, tuning_lines

    if build:
        build_kernels(arch, terminal)
    for line in tuning_lines() if tuning else ():
        terminal.data(line)


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
        threads=threads(),
        memory_available=available_bytes(),
        backends=backends,
        directories={name: str(path) for name, path in asdict(directories()).items()},
        hub=why_unreachable(access),
        hub_endpoint=access.endpoint,
        hub_token=_has_token(),
        default_model=settings.model.value or BUILT_IN,
        default_model_here=here,
    )
    report.advice.extend(_advice(report))
    return report


def examine_backend(info: BackendInfo) -> BackendReport:
    """Whether a backend can run and, if so, whether it is right."""
    if not info.usable:
        return BackendReport(info.name, False, info.reason or "", hint=info.hint)
    from llmrs_cli.engine.backends.registry import notice_of
    from llmrs_cli.engine.verify import self_test

    try:
        error = self_test(info.name)
        speeds = _speeds(info.name)
    except LlmrsError as failure:
        return BackendReport(info.name, True, failure.message, ok=False)
    detail = f"self-test: relative error {error:.1e}"
    if speeds is None:
        return BackendReport(info.name, True, detail, True, notice=notice_of(info.name))
    bandwidth, achieved = speeds
    detail += f"; reads {achieved / 1e9:.1f} of {bandwidth / 1e9:.1f} GB/s ({achieved / bandwidth:.0%})"
    return BackendReport(info.name, True, detail, True, None, notice_of(info.name), bandwidth, achieved)


def _speeds(name: str) -> tuple[float, float] | None:
    """Bytes a second: of a plain loop, which is remembered, and of a backend. None for the reference, which is
    slow by design, and where there is no room to measure."""
    from llmrs_cli.cli.measure import achieved, bandwidth_of

    if name == "reference":
        return None
    try:
        bandwidth = bandwidth_of(name)
        remember_bandwidth(name, bandwidth)
        return bandwidth, achieved(name)
    except (DoesNotFitError, MemoryError):
        return None


def _aliases(offline: bool) -> list[AliasReport]:
    from llmrs_cli.cli.alias_check import check_aliases
    from llmrs_cli.config import load_settings
    from llmrs_cli.hub.access import HubAccess

    settings = load_settings({"offline": offline or None})
    return check_aliases(HubAccess.from_environment(offline=settings.offline.value))


def _has_token() -> bool:
    from llmrs_cli.hub.library import has_token

    try:
        return has_token()
    except LlmrsError:  # what is there is no token
        return False


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
    yield from (text for module, text in optional_parts().items() if not _is_installed(module))
    if not report.default_model_here and report.hub:
        yield "The built-in model is fetched on first use: that needs the network once."


def optional_parts() -> dict[str, str]:
    """Module of a part that can be left out → what to type to have it."""
    return {
        "uvicorn": f"llmrs serve needs a few packages more: {install('serve')}.",
        "backports.zstd": "zstd files of llmrs batch need one package more: pip install backports.zstd",
    }


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package
        return False


def describe(report: Report) -> Iterator[str]:
    """The report for people, a line at a time."""
    yield f"llmrs {report.llmrs}, Python {report.python}, {report.platform}"
    yield f"{report.threads} threads, {report.memory_available / 2**30:.1f} GiB of memory free"
    yield "Backends"
    for backend in report.backends:
        mark = "no" if not backend.usable else "ok" if backend.ok else "WRONG"
        yield f"  {backend.name:<10}{mark:<6}{backend.detail}"
        if backend.notice is not None:
            yield f"  {'':<16}{backend.notice}"
    token = "with a token" if report.hub_token else "without a token, so no gated or private models"
    yield f"Hub         {report.hub_endpoint}: {report.hub or f'answers; {token}'}"
    here = "is on this machine" if report.default_model_here else "is not on this machine yet"
    yield f"Built-in    {report.default_model} {here}"
    yield "Folders"
    for name, path in report.directories.items():
        yield f"  {name:<12}{path}"
    if report.aliases:
        yield "Short names"
    for alias in report.aliases:
        mark = "?" if alias.ok is None else "ok" if alias.ok else "WRONG"
        yield f"  {alias.name:<18}{mark:<6}{alias.repo}: {alias.detail}"
    for line in report.advice:
        yield f"To do       {line}"
