"""A server in a process of its own, with a window into it: what a benchmark or a load test looks at.

The server is the one of `llmrs serve`; the process also measures how late its event loop runs, and on SIGUSR1
writes that, its tasks, its objects and its open files to a file. `Watched` is the other side.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

from llmrs_cli.errors import LlmrsError
from llmrs_cli.server.load import percentile
from llmrs_cli.server.load_client import Target, get
from llmrs_cli.server.remote import CHILD

ROOT = Path(__file__).parent.parent
NAME = "model"
EVERY = 0.005
"""Seconds between two looks at the clock."""
BEAT = 0.25
"""Seconds between counters that the engine sends: `child.PACE`, which a server without an engine need not import."""
PATIENCE = 900.0
"""Seconds that a model may take to load."""


@dataclass(frozen=True)
class Setup:
    """What is served, and how."""

    folder: str
    device: str = "cpu"
    rows: int | None = None
    context: int | None = None
    queue: int = 256
    command: tuple[str, ...] = CHILD
    """What runs the engine."""
    deterministic: bool = False
    watchdog: float = 60.0


class Window:
    """Inside the server's process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lags: list[float] = []
        self._stalls: list[float] = []
        """How late each look was, as far as the loop's thread computed meanwhile: late on whatever machine. What other
        threads do under the interpreter's lock is in the lags alone."""
        self._task: asyncio.Task[None] | None = None

    def open(self, *_: object) -> None:
        """Begin to look; called in the event loop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._show)
        self._task = asyncio.create_task(self._feel())

    async def _feel(self) -> None:
        while True:
            began, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(EVERY)
            late = time.monotonic() - began - EVERY
            self._lags.append(late)
            self._stalls.append(min(late, time.thread_time() - cpu))

    def _show(self) -> None:
        """Tell, and begin anew after the time that it took."""
        assert self._task is not None
        self._task.cancel()
        lags, self._lags = sorted(self._lags), []
        stalls, self._stalls = sorted(self._stalls), []
        gc.collect()
        report = {
            "objects": len(gc.get_objects()),
            "tasks": len(asyncio.all_tasks()),
            "files": len(list(Path("/proc/self/fd").iterdir())),
            "loop_lag_p99_ms": round(1e3 * percentile(lags, 99), 2) if lags else 0.0,
            "loop_stall_p99_ms": round(1e3 * percentile(stalls, 99), 2) if stalls else 0.0,
            "loop_stall_most_ms": round(1e3 * max(stalls, default=0.0), 2),
            "loop_lag_most_ms": round(1e3 * max(lags, default=0.0), 2),
        }
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(report))
        fresh.rename(self._file)
        self._task = asyncio.create_task(self._feel())


class Watched:
    """A running server, from outside. `with Watched(setup) as server: await server.ready()`."""

    def __init__(self, setup: Setup) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="llmrs-")
        self._file = Path(self._folder.name) / "window.json"
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            self.target = Target("127.0.0.1", listener.getsockname()[1], "")
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.watched_server", json.dumps(asdict(setup))]
                + [str(listener.fileno()), str(self._file)],
                pass_fds=(listener.fileno(),),
                cwd=ROOT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    async def ready(self) -> None:
        """Wait until the model has loaded."""
        end = time.monotonic() + PATIENCE
        while (await get(self.target, "/health/live"))["status"] != "ready":
            assert self.process.poll() is None, "the server has ended"
            assert time.monotonic() < end, "the server does not become ready"
            await asyncio.sleep(0.05)

    async def look(self) -> dict[str, Any]:
        """What the window shows; the lag is that since the last look."""
        self._file.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        await until(self._file.exists)
        report: dict[str, Any] = json.loads(self._file.read_text())
        return report

    async def post(self, path: str, data: bytes) -> int:
        """The status of an answer, which is read whole."""

        def ask() -> int:
            with closing(HTTPConnection(self.target.host, self.target.port, timeout=PATIENCE)) as connection:
                connection.request("POST", path, data, {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                return response.status

        return await asyncio.to_thread(ask)

    async def metric(self, name: str) -> float:
        """The value of a series that has one label set."""
        text = (await get(self.target, "/metrics", lambda data: data.decode())).splitlines()
        (line,) = [line for line in text if line.startswith(f"llmrs:{name}{{")]
        return float(line.rsplit(" ", 1)[1])

    async def idle(self) -> None:
        """Wait until nothing runs or waits and no block is held, by counters of a moment that is not past yet."""
        await asyncio.sleep(1.2 * BEAT)
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_blocks_used")
        while any([await self.metric(name) for name in names]):
            await asyncio.sleep(0.05)

    @property
    def child(self) -> int:
        """The engine's process."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return min(int(child) for task in tasks for child in task.read_text().split())

    def memory(self) -> int:
        """Bytes that the server and its engine hold and share with nobody, in memory or swapped out."""
        return sum(map(anonymous, (self.process.pid, self.child)))

    def forget_peak(self) -> int:
        """Bytes of memory that the server, without its engine, has in use; `peak` counts from now on."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.peak()

    def peak(self) -> int:
        """The most bytes that it had in use since then."""
        return _memory(self.process.pid, "VmHWM")

    def cpu_seconds(self) -> float:
        """CPU time of the server without the engine's process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def until(condition: Callable[[], bool], patience: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process has not ended; one whose parent was killed may wait a while for whoever buries it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def anonymous(pid: int) -> int:
    """Bytes that a process shares with nobody."""
    return _memory(pid, "RssAnon", "VmSwap")


def _memory(pid: int, *names: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(names))


def main() -> None:
    from llmrs_cli.server import run
    from llmrs_cli.server.settings import ServerSettings

    setup = Setup(**json.loads(sys.argv[1]))
    load = run.Load(
        Path(setup.folder),
        setup.device,
        setup.context,
        setup.rows,
        deterministic=setup.deterministic,
        command=tuple(setup.command),
    )
    tell = run.Tell(lambda done, whole: None, Window(Path(sys.argv[3])).open)
    with socket.socket(fileno=int(sys.argv[2])) as listener:
        listener.setblocking(False)
        try:
            settings = ServerSettings((NAME,), queue=setup.queue, watchdog=setup.watchdog)
            status = run.serve(listener, settings, load, tell, quiet=True)
        except LlmrsError as error:
            print(f"server: {error.message}", file=sys.stderr)
            status = error.exit_code
    sys.exit(status)


if __name__ == "__main__":
    main()
