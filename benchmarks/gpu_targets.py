"""Load on a server of a model of real size: full batches, aborts, prefixes, soak, faults, hard requests.

    python -m benchmarks.gpu_targets OUT.json [--model qwen2.5-0.5b] [--device cuda] [--slice] [--free] [H1 H2 ...]

Weights are random, those of an AWQ model random words. Each target takes up to ten minutes; `--slice` does a little of
each and, with `--device cpu` and `--model tiny` or `tiny-awq`, shows on any machine that the scenarios work. What needs
a GPU is left out elsewhere and said. Answers are compared in the mode whose bits do not depend on company, where the
device has it; 4-bit weights are widened there. With `--free` H2 and H3 run in the usual mode, where they stay packed, and
how many answers differ is only told.

Longer than most files: each target is a scene of its own, and all of them share one place, server and client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from benchmarks.load_scene import MIB, Result, ask, at_once, body, leaving, prompts
from benchmarks.random_model import random_model
from benchmarks.watched_server import Setup, Watched, until
from llmrs_cli.server.load_client import Answer
from llmrs_cli.server.run import allow_files

BLOCK = 64
"""Tokens of a KV block on CUDA; a multiple of that of other devices."""
FAULTY = (sys.executable, "-m", "benchmarks.faulty_engine")
LOOK = "import cupy; free, whole = cupy.cuda.runtime.memGetInfo(); print(whole - free)"
HOG = """
import cupy, sys
free, _ = cupy.cuda.Device().mem_info
kept = cupy.cuda.alloc(max(0, free - int(sys.argv[1])))
print("full", flush=True)
sys.stdin.read()
"""
"""Takes what is free on the device but for some bytes, until its input ends."""


@dataclass(frozen=True)
class Place:
    """Where, and how much."""

    folder: str
    device: str
    small: bool
    free: bool = False
    """Whether company may change bits even where it need not."""

    @property
    def fixed(self) -> bool:
        """Whether it does not."""
        return self.gpu and not self.free

    @property
    def gpu(self) -> bool:
        return self.device.startswith("cuda")

    def of(self, whole: int, part: int) -> int:
        return part if self.small else whole

    def setup(self, context: int, *, rows: int | None = None, **more: Any) -> Setup:
        rows = rows or self.of(256, 16)
        return Setup(self.folder, self.device, rows, context, queue=8192, **more)

    def memory(self, server: Watched) -> int:
        """Bytes in use on the device; elsewhere, of the processes."""
        return device_memory() if self.gpu else server.memory()


def device_memory() -> int:
    """Bytes in use on the first GPU, with those of the process that looks."""
    run = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    return int(run.stdout)


def failures(answers: Sequence[Answer | None]) -> int:
    return sum(answer is None or bool(answer.error) for answer in answers)


async def full_batch(place: Place) -> Result:
    """H1: 4,096 requests of 32 to 8k tokens at 256 streams: no failure, no growth after the warm-up but for recordings of
    steps whose size is met for the first time."""
    result, rng, longest = Result(), random.Random(1), place.of(8192, 256)
    with Watched(place.setup(longest + 64)) as server:
        await server.ready()

        def work(count: int) -> list[Callable[[], Coroutine[Any, Any, Answer]]]:
            lengths = [int(math.exp(rng.uniform(math.log(32), math.log(longest)))) for _ in range(count)]
            return [partial(ask, server, body(prompts(1, n, seed=rng.random())[0], 64)) for n in lengths]

        await at_once(256, work(place.of(2048, 32)))
        before, began = place.memory(server), time.monotonic()
        answers = await at_once(256, work(place.of(4096, 64)))
        seconds = time.monotonic() - began
        result.bound("memory_grown_mib", (place.memory(server) - before) / MIB, 32 if place.gpu else 64)
        await server.idle()
    result.figures["tok_s"] = round(sum(a.tokens for a in answers if a) / seconds, 1)
    result.bound("failed", failures(answers), 0)
    return result


async def aborts(place: Place) -> Result:
    """H2: 2,000 clients leave within a minute; nothing of them stays, the others' answers are as in calm."""
    result, rng = Result(), random.Random(2)
    with Watched(place.setup(1024, deterministic=place.fixed)) as server:
        await server.ready()
        asked = [body(prompt, 128) for prompt in prompts(place.of(128, 4), 64, seed=2)]
        calm = await at_once(256, [partial(ask, server, one) for one in asked])
        survivors = asyncio.create_task(
            at_once(len(asked), [partial(ask, server, one) for one in asked * place.of(20, 2)])
        )
        left = []
        for prompt in prompts(place.of(2000, 40), 64, seed=3):
            left.append(asyncio.create_task(leaving(server, body(prompt, 512), rng.random() * 2)))
            await asyncio.sleep(0.03)
        await asyncio.gather(*left)
        answers, began = await survivors, time.monotonic()
        await server.idle()
        result.bound("seconds_to_idle", time.monotonic() - began, 1)
    texts = [answer.text if answer else "" for answer in calm]
    different = sum(a is None or a.text != texts[i % len(texts)] for i, a in enumerate(answers))
    result.bound("failed", failures(answers), 0)
    result.bound("different", different, 0 if place.fixed else len(answers))
    return result


async def prefixes(place: Place) -> Result:
    """H3: prompts that end around the edges of blocks are answered alike with cached prefixes and without."""
    result, rng = Result(), random.Random(3)
    with Watched(place.setup(2048, deterministic=place.fixed)) as server:
        await server.ready()
        shared = prompts(1, 16 * BLOCK, seed=4)[0]
        asked = []
        for _ in range(place.of(2000, 24)):
            length = rng.randrange(1, 16) * BLOCK + rng.choice((-1, 0, 1, 2))
            asked.append(body([*shared[:length], *prompts(1, rng.randrange(1, 4), seed=rng.random())[0]], 16))
        alone = [{**one, "cache_salt": str(number)} for number, one in enumerate(asked)]
        cold = await at_once(64, [partial(ask, server, one) for one in alone])
        warm = await at_once(64, [partial(ask, server, one) for one in asked])
        await server.idle()
        result.figures["cached_tokens"] = await server.metric("prefix_cache_hits_total")
    different = sum(a is None or b is None or a.text != b.text for a, b in zip(cold, warm, strict=True))
    result.bound("failed", failures(cold) + failures(warm), 0)
    result.bound("nothing_was_cached", int(not result.figures["cached_tokens"]), 0)
    result.bound("different", different, 0 if place.fixed else len(asked))
    return result


async def soak(place: Place) -> Result:
    """H4: eight minutes at full load: the device's memory stays, the host's grows by next to nothing."""
    result, points, device, done = Result(), list[tuple[int, int]](), list[int](), 0
    seconds = place.of(480, 6)
    with Watched(place.setup(1024)) as server:
        await server.ready()
        began, number = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            number += 1
            many = prompts(place.of(1024, 32), 128, seed=number)
            answers = await at_once(256, [partial(ask, server, body(prompt, 64)) for prompt in many])
            done += len(answers)
            result.bound("failed", result.figures.get("failed", 0) + failures(answers), 0)
            points.append((done, server.memory()))
            device.append(place.memory(server))
    later = points[len(points) // 4 :]
    result.figures["requests"] = done
    if place.gpu:
        quarters = [device[(len(device) - 1) * part // 4] for part in range(5)]
        result.figures["device_mib_by_quarter"] = [round(taken / MIB, 1) for taken in quarters]
        result.bound("device_memory_grown_mib", (quarters[-1] - quarters[1]) / MIB, 0)
    if len(later) > 2:
        slope = statistics.linear_regression(*zip(*later, strict=True)).slope / 1024
        result.bound("kib_a_request", slope, 64 if place.small else 0.5)
    return result


async def faults(place: Place) -> Result:
    """H5: whatever ends the engine is told to clients and ends the server; memory is free again at once."""
    result = Result()
    free = device_memory() if place.gpu else 0
    for name, strike, status in (
        ("illegal_address", lambda server: os.kill(server.child, signal.SIGUSR2), 8),
        ("engine_killed", lambda server: os.kill(server.child, signal.SIGKILL), 8),
        ("server_killed", lambda server: server.process.kill(), -9),
        ("terminated", lambda server: server.process.terminate(), 143),
    ):
        began = time.monotonic()
        with Watched(place.setup(2048, command=FAULTY)) as server:
            await server.ready()
            result.figures[f"{name}_start_seconds"] = round(time.monotonic() - began, 2)
            child = server.child
            asked = [asyncio.create_task(ask(server, body(p, 1900))) for p in prompts(32, 16, seed=5)]
            while not await server.metric("num_requests_running"):
                assert not any(task.done() for task in asked), "an answer ended before the fault"
                await asyncio.sleep(0.01)
            began = time.monotonic()
            strike(server)
            ended = await asyncio.to_thread(server.process.wait, 60)
            result.bound(f"{name}_end_seconds", time.monotonic() - began, 40 if status == 143 else 10)
            answers = await asyncio.gather(*asked)
            await until(lambda child=child: not Path(f"/proc/{child}").exists())  # type: ignore[misc]
        expected = (0, 143) if status == 143 else (status,)
        result.bound(f"{name}_wrong_status", int(ended not in expected), 0)
        result.bound(f"{name}_untold", sum(not (a.error or a.tokens) for a in answers), 0)
        if place.gpu:
            await until(lambda: device_memory() <= free + 64 * MIB, patience=5)
    if place.gpu:
        await _beside_a_hog(place, result)
    return result


async def _beside_a_hog(place: Place, result: Result) -> None:
    """A device that somebody else fills, before the server starts and while it runs."""
    with _hog(2**30):
        with Watched(place.setup(2048)) as server:
            status = await asyncio.to_thread(server.process.wait, 300)
        result.bound("full_device_wrong_status", int(status != 6), 0)
    with Watched(place.setup(2048)) as server:
        await server.ready()
        with _hog(2**28):
            answers = await at_once(256, [partial(ask, server, body(p, 32)) for p in prompts(512, 64)])
        result.bound("failed_while_it_fills", failures(answers), 0)


def _hog(left: int) -> subprocess.Popen[str]:
    hog = subprocess.Popen(
        [sys.executable, "-c", HOG, str(left)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert hog.stdout is not None
    assert hog.stdout.readline() == "full\n"
    return hog


async def hard_requests(place: Place) -> Result:
    """H7: a schema, 20 log-probabilities a token and those of an 8k prompt, many at once: nothing runs out."""
    result, length = Result(), place.of(8192, 256)
    choice = {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}}
    with Watched(place.setup(length + 64, rows=place.of(64, 4))) as server:
        await server.ready()
        url = f"http://127.0.0.1:{server.target.port}/v1/completions"
        given = {
            "stream": False,
            "stream_options": None,
            "logprobs": 5,
            "prompt_logprobs": 5,
            "ignore_eos": False,
        }
        bodies = [body(prompt, 16, **given, **choice) for prompt in prompts(place.of(64, 4), length, seed=7)]
        before = place.memory(server)
        told = await asyncio.gather(*(asyncio.to_thread(_whole, url, one) for one in bodies))
        grown = place.memory(server) - before
        plain = await ask(server, body([1, 2, 3], 4))
    result.figures["memory_grown_mib"] = round(grown / MIB, 1)
    result.bound("refused", sum(status != 200 for status, _ in told), 0)
    result.bound("without_scores", sum(len(_scores(answer)) != length for _, answer in told), 0)
    result.bound("failed_after", failures([plain]), 0)
    return result


async def slow_readers(place: Place) -> Result:
    """H8: of 1,000 connections 256 read slowly, and tokens are drawn as fast as when all read.

    A server takes 1,024: some remain for who looks at its metrics, and for those that end while others begin.
    """
    result, rates = Result(), dict[str, list[float]]()
    many, slow = place.of(1000, 24), place.of(256, 6)
    with Watched(place.setup(1024)) as server:
        await server.ready()
        for _ in range(place.of(3, 1)):
            for name, lagging in (("all_read", 0), ("some_read_slowly", slow)):
                rate = await _drawn(place, server, many - lagging, lagging)
                rates.setdefault(name, []).append(round(rate, 1))
    before, beside = (statistics.median(found) for found in rates.values())
    result.figures |= {"tok_s": rates}
    result.bound("drop", 1 - beside / before, 0.02 if place.gpu else 1)
    return result


async def _drawn(place: Place, server: Watched, fast: int, slow: int) -> float:
    """Tokens a second that the engine draws for so many clients, each of which asks again and again."""
    given = body(prompts(1, 64, seed=8)[0], place.of(512, 64))

    async def read() -> None:
        while True:
            assert (await ask(server, given)).error is None

    clients = [asyncio.create_task(read()) for _ in range(fast)]
    clients += [asyncio.create_task(_read_slowly(server, given)) for _ in range(slow)]
    await asyncio.sleep(place.of(5, 2))
    drawn, began = await server.metric("generation_tokens_total"), time.monotonic()
    await asyncio.sleep(place.of(15, 2))
    drawn, seconds = await server.metric("generation_tokens_total") - drawn, time.monotonic() - began
    failed = [client for client in clients if client.done()]
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    await server.idle()
    assert not failed, failed
    return drawn / seconds


async def _read_slowly(server: Watched, given: dict[str, Any]) -> None:
    """About 5 KB a second, less than a stream has."""
    loop, data = asyncio.get_running_loop(), json.dumps(given).encode()
    while True:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, (server.target.host, server.target.port))
            await loop.sock_sendall(client, server.target.request("POST", "/v1/completions", data))
            while await loop.sock_recv(client, 512):
                await asyncio.sleep(0.1)


def _scores(answer: Any) -> Sequence[Any]:
    found: Sequence[Any] = answer.get("choices", [{}])[0].get("prompt_logprobs") or ()
    return found


def _whole(url: str, given: Any) -> tuple[int, Any]:
    """Status and JSON of an answer that is no stream."""
    request = Request(url, json.dumps(given).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=600) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


TARGETS: dict[str, Callable[[Place], Coroutine[Any, Any, Result]]] = {
    "H1": full_batch,
    "H2": aborts,
    "H3": prefixes,
    "H4": soak,
    "H5": faults,
    "H7": hard_requests,
    "H8": slow_readers,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS])
    parser.add_argument("--model", default="qwen2.5-0.5b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--slice", action="store_true")
    parser.add_argument("--free", action="store_true")
    given = parser.parse_intermixed_args()
    allow_files()
    told: dict[str, Any] = {}
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m " + " ".join(["benchmarks.gpu_targets", *sys.argv[1:]]),
        "model": f"{given.model}, random weights",
        "device": given.device,
        "targets": told,
    }
    with random_model(given.model) as folder:
        place = Place(str(folder), given.device, given.slice, given.free)
        for name in given.targets or TARGETS:
            began = time.monotonic()
            result = asyncio.run(TARGETS[name](place))
            seconds = round(time.monotonic() - began, 1)
            told[name] = {"met": not result.missed, "seconds": seconds, **result.figures}
            print(name, f"{seconds} s", json.dumps(result.figures), *result.missed, sep="  ", flush=True)
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(target["met"] for target in told.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
