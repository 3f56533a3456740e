"""Load on a server of a tiny model: many at once, clients that leave or do not read, overload, soak, start and stop.

    python -m benchmarks.load_targets [--slice | --nightly] [--out benchmarks/load-targets.json] [L1 L2 ...]

Runs each target, prints its figures and compares them with its bounds; the status is 1 if one is missed. In the
file, targets that are not run keep their figures, and a note that somebody wrote there stays; `nice` is the priority
at which one ran. L6, L8 and L9 are tests, L8 with twenty times their examples and with the fuzzer (`pip install
atheris`) for a minute on each reader. `--slice` is what CI runs: all but these three in small. It enforces what does not
depend on how busy the machine is (failures, equal answers, leaks), and only reports times. `--nightly` is the long
form of those that have one, the soak, the fuzzer and L9: an hour or so each.

Longer than most files: each target is a scene of its own. Those of strangers are in `load_strangers`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import fuzz
from benchmarks.load_scene import MIB, ROUNDS, Result, Size, ask, at_once, body, leaving, prompts
from benchmarks.load_strangers import faults, forms, hostile_bytes, large_bodies
from benchmarks.watched_server import NAME, Watched, anonymous, runs
from llmrs_cli.server.load import percentile, series
from llmrs_cli.server.load_client import Answer
from tests.helpers.tiny_model import TinyModel, write_tiny

MODEL = TinyModel(vocab=512, hidden=64, ffn=128, context=2048, tokenizer=True)


# -- the targets ----------------------------------------------------------------------------------------


async def concurrency(size: Size) -> Result:
    """L1: 64 streams at once; nothing fails, each answer is that of its prompt alone. The stall is how late the
    loop is as far as its own work goes; the lag beside it holds what else the machine did."""
    result = Result()
    with Watched(size.setup(64)) as server:
        await server.ready()
        asked = [body(prompt, 32) for prompt in prompts(32, 24)]
        alone = [(await ask(server, one)).text for one in asked]
        answers, looks = list[Answer | None](), []
        for _ in range(size.of(ROUNDS, 1)):
            await server.look()
            answers += await at_once(64, [partial(ask, server, one) for one in asked * size.of(16, 8)])
            looks.append(await server.look())
    errors = [answer for answer in answers if answer is None or answer.error]
    different = sum(a is not None and a.text != alone[i % len(alone)] for i, a in enumerate(answers))
    result.figures["requests"] = len(answers)
    result.bound("failed", len(errors), 0)
    result.bound("different_from_alone", different, 0)
    result.figures["loop_lag_p99_ms"] = [look["loop_lag_p99_ms"] for look in looks]
    size.timed(result, "loop_stall_p99_ms", [look["loop_stall_p99_ms"] for look in looks], 20)
    return result


async def abort_storm(size: Size) -> Result:
    """L2: half of the clients leave at a random moment; the others have the answers that they have alone, and soon
    after the end nothing of those is left."""
    result, rng = Result(), random.Random(2)
    with Watched(size.setup(32)) as server:
        await server.ready()
        await at_once(16, [partial(ask, server, body(prompt, 8)) for prompt in prompts(32, 16, seed=1)])
        await server.idle()
        before = await server.look()

        def work(i: int, prompt: list[int]) -> Callable[[], Awaitable[Answer | None]]:
            if i % 2:
                given = body(prompt, 32, stream=i % 4 == 1, n=1 + i % 3)
                return partial(leaving, server, given, rng.random() * 0.4)
            return partial(ask, server, body(prompt, 32))

        some = prompts(40, 40, seed=2)
        alone = [(await ask(server, body(prompt, 32))).text for prompt in some]
        many = some * size.of(25, 10)
        answers = await at_once(64, [work(i, prompt) for i, prompt in enumerate(many)])
        began = time.monotonic()
        await server.idle()
        seconds = time.monotonic() - began
        await asyncio.sleep(1)
        after = await server.look()
    result.figures["requests"] = len(answers)
    result.bound("failed_of_those_who_stayed", sum(bool(a and a.error) for a in answers), 0)
    different = sum(bool(a and a.text != alone[i % len(alone)]) for i, a in enumerate(answers))
    result.bound("different_from_alone", different, 0)
    size.timed(result, "seconds_to_idle", seconds, 1)
    result.bound("files_left", after["files"] - before["files"], 2)
    result.bound("tasks_left", after["tasks"] - before["tasks"], 2)
    return result


async def slow_readers(size: Size) -> Result:
    """L3: 20 clients do not read; 8 that do are at most twice as slow, and memory stays."""
    result, seconds = Result(), size.of(30, 4)
    with Watched(size.setup(32)) as server:
        await server.ready()

        async def live(until: float) -> list[Answer]:
            found = []
            while time.monotonic() < until:
                found += await asyncio.gather(*(ask(server, body(p, 64)) for p in prompts(8, 24, seed=3)))
            return found

        await live(time.monotonic() + 1)
        alone = await live(time.monotonic() + seconds / 2)
        memory = anonymous(server.process.pid)  # the engine's blocks, used for the first time, are no growth
        stalled = [await _stalled(server, prompt) for prompt in prompts(20, 24, seed=4)]
        beside = await live(time.monotonic() + seconds)
        grown = anonymous(server.process.pid) - memory
        for client in stalled:
            client.close()
        await server.idle()
    p95 = [percentile(sorted(series(answers)["itl"]), 95) for answers in (alone, beside)]
    result.figures |= {"p95_itl_alone_ms": round(p95[0], 2), "p95_itl_ms": round(p95[1], 2)}
    result.bound("failed", sum(bool(a.error) for a in alone + beside), 0)
    size.timed(result, "p95_itl_ratio", p95[1] / p95[0], 2)
    result.bound("memory_grown_mib", grown / MIB, 32)
    return result


async def _stalled(server: Watched, prompt: list[int]) -> socket.socket:
    """A client that asks for much and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (server.target.host, server.target.port))
    data = json.dumps(body(prompt, 1500)).encode()
    await loop.sock_sendall(client, server.target.request("POST", "/v1/completions", data))
    return client


async def overload(size: Size) -> Result:
    """L4: 512 arrivals in a second where 80 find room; those are served, the rest is refused at once."""
    result, answers = Result(), list[Answer]()
    refusals, recoveries = list[float](), list[float]()
    with Watched(size.setup(16, queue=64)) as server:
        await server.ready()
        await ask(server, body([1, 2], 4))
        for number in range(size.of(ROUNDS, 1)):
            tasks = []
            for prompt in prompts(512, 24, seed=5 + number):
                tasks.append(asyncio.create_task(ask(server, body(prompt, 64))))
                await asyncio.sleep(1 / 512)
            came = await asyncio.gather(*tasks)
            began = time.monotonic()
            plain = await ask(server, body([1, 2], 4))
            recoveries.append(time.monotonic() - began)
            refused = sorted(1e3 * (a.ended - a.began) for a in came if a.status == 429)
            refusals.append(percentile(refused, 99) if refused else 0.0)
            answers += came
    told = Counter(answer.status for answer in answers)
    result.figures |= {"served": told[200], "refused": told[429]}
    result.bound(
        "neither_served_nor_refused", sum(count for code, count in told.items() if code not in (200, 429)), 0
    )
    result.bound("failed_of_those_accepted", sum(a.status == 200 and a.error is not None for a in answers), 0)
    result.bound("failed_after", int(plain.error is not None), 0)
    size.timed(result, "refusal_p99_ms", refusals, 50)
    size.timed(result, "recovery_seconds", max(recoveries), 1)
    return result


async def soak(size: Size) -> Result:
    """L5: thousands of short requests, some left, some with schemas, some bad; memory and objects stay."""
    result, rng = Result(), random.Random(6)
    count, step, warm = size.of(10_000, 2_400, 300_000), size.of(1_000, 200), size.of(2_000, 1_200)
    shared = prompts(8, 64, seed=7)
    told: Counter[str] = Counter()
    points: list[tuple[int, int]] = []
    objects = []

    async def one(server: Watched) -> None:
        prompt = rng.choice(shared) + [rng.randrange(256) for _ in range(rng.randrange(1, 16))]
        given, kind = body(prompt, rng.randrange(1, 12)), rng.random()
        if kind < 0.1:
            await leaving(server, body(prompt, 64), rng.random() * 0.05)
            told["left"] += 1
            return
        if kind < 0.15:
            given |= {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}, "ignore_eos": False}
        elif kind < 0.2:
            given["max_tokens"] = -1
        answer = await ask(server, given)
        told[f"{answer.status}{'' if answer.status != 200 or not answer.error else ' broken'}"] += 1

    # A small pool of blocks: memory that is new to the process until each block has been used once is no leak.
    with Watched(size.setup(16, context=256)) as server:
        await server.ready()
        for done in range(0, count, step):
            room = asyncio.Semaphore(16)

            async def guarded(room: asyncio.Semaphore = room) -> None:
                async with room:
                    await one(server)

            await asyncio.gather(*(guarded() for _ in range(step)))
            await server.idle()
            if done + step >= warm:
                points.append((done + step, server.memory()))
                objects.append((await server.look())["objects"])
    result.figures |= {"requests": count, "told": dict(told), "memory_mib": round(points[-1][1] / MIB, 1)}
    result.bound("unexpected", sum(told.values()) - told["200"] - told["400"] - told["left"], 0)
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope / 1024
    result.bound("kib_a_request", slope, size.of(1, 8) / 2)
    result.bound("objects_grown", objects[-1] - objects[0], 2_000)
    return result


async def kill_loop(size: Size) -> Result:
    """L6: a batch that is killed fifty times loses and repeats nothing."""
    return _tests("tests/cli/test_batch_kills.py")


async def lifecycle(size: Size) -> Result:
    """L7: start and stop; an idle server ends within a second and leaves nothing, even if it is killed."""
    result, stops, starts = Result(), [], []
    for number in range(size.of(50, 4)):
        began = time.monotonic()
        with Watched(size.setup(4)) as server:
            await server.ready()
            starts.append(time.monotonic() - began)
            await ask(server, body([1, 2, 3], 4))
            killed, child, began = number % 5 > 2, server.child, time.monotonic()
            (server.process.kill if killed else server.process.terminate)()
            status = await asyncio.to_thread(server.process.wait, 60)
            if killed:
                await asyncio.sleep(1)  # the engine's process learns of it from its pipe
            else:
                stops.append(time.monotonic() - began)
            result.bound("wrong_status", int(status != (-9 if killed else 0)), 0)
            result.bound("left_behind", int(runs(child)), 0)
    result.figures["median_start_seconds"] = round(statistics.median(starts), 2)
    size.timed(result, "slowest_stop_seconds", max(stops), 1)
    return result


async def generated_requests(size: Size) -> Result:
    """L8: a hundred generated requests of each kind and path, right and wrong ones; eight readers under a fuzzer."""
    result, seconds = _tests("tests/server/test_openapi.py", SOAK="1"), size.of(60, 5, 450)
    found = {name: await asyncio.to_thread(fuzz.fuzz, name, seconds) for name in fuzz.NAMES}
    result.figures["fuzzed"] = found
    result.bound("faults", sum(figures["faults"] for figures in found.values()), 0)
    return result


async def stateful(size: Size) -> Result:
    """L9: the scheduler against a naive model, by generated sequences of what may happen to it."""
    return _tests("tests/engine/test_scheduler_properties.py", SOAK=str(size.of(0, 0, 1)))


def _tests(path: str, **variables: str) -> Result:
    result = Result()
    command = [sys.executable, "-m", "pytest", "-q", path, "-o", "timeout=3600"]
    run = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    result.figures["said"] = run.stdout.strip().splitlines()[-1:]
    result.bound("status", run.returncode, 0)
    return result


TARGETS: dict[str, Callable[[Size], Coroutine[Any, Any, Result]]] = {
    "L1": concurrency,
    "L2": abort_storm,
    "L3": slow_readers,
    "L4": overload,
    "L5": soak,
    "L6": kill_loop,
    "L7": lifecycle,
    "L8": generated_requests,
    "L9": stateful,
    "bodies": large_bodies,
    "hostile": hostile_bytes,
    "forms": forms,
    "faults": faults,
}
SLICE = ("L1", "L2", "L3", "L4", "L5", "L7", "bodies", "hostile", "forms", "faults")
NIGHTLY = ("L5", "L8", "L9")


def main() -> int:
    parser = argparse.ArgumentParser()
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--slice", action="store_true")
    form.add_argument("--nightly", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS])
    given = parser.parse_args()
    kept = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    told = kept.get("targets", {})
    report: dict[str, Any] = {
        **kept,
        "command": "python -m benchmarks.load_targets",
        "machine": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "model": "2 layers, hidden 64, vocabulary 512, context 2048, random",
        "targets": told,
    }
    missed = 0
    with tempfile.TemporaryDirectory(prefix="llmrs-") as folder:
        size = Size(given.slice, str(write_tiny(Path(folder) / NAME, MODEL)), given.device, given.nightly)
        for name in given.targets or (SLICE if given.slice else NIGHTLY if given.nightly else TARGETS):
            load, began = os.getloadavg()[0], time.monotonic()
            result = asyncio.run(TARGETS[name](size))
            missed += len(result.missed)
            seconds = round(time.monotonic() - began, 1)
            told[f"{name} nightly" if given.nightly else name] = {
                "what": " ".join((TARGETS[name].__doc__ or "").partition(": ")[2].split()),
                "date": time.strftime("%Y-%m-%d"),
                "load_before": round(load, 2),
                "nice": os.nice(0),
                "met": not result.missed,
                "seconds": seconds,
                **result.figures,
            }
            print(name, f"{seconds} s", json.dumps(result.figures), *result.missed, sep="  ", flush=True)
            if given.out:
                given.out.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
