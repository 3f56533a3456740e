"""Load targets of strangers: bodies as large as may be, bytes that are no requests, forms that cost too much; and engines
that break. Each is refused, or told to whom it concerns, and costs nobody else anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import broken_engine
from benchmarks import hostile_bytes as hostile
from benchmarks.load_scene import MIB, ROUNDS, Result, Size, ask, body, prompts
from benchmarks.watched_server import Watched, runs, until
from llmrs_cli.server.load import percentile
from llmrs_cli.server.run import listen
from tests.helpers.tool_schemas import tool_schemas

NAPS = 4
"""Seconds in which idle threads of the CPU backend still look for work now and then, so that an engine which hangs does
not yet look as if it did."""
REFUSED = (b"", b"HTTP/1.1 4")
"""How an answer to what is no request begins: not at all, if the connection was cut."""


async def large_bodies(size: Size) -> Result:
    """bodies: as large as may be, of every kind, right and wrong; the loop stays free for everybody else."""
    result, messages = (
        Result(),
        [{"role": "user", "content": "word " * 150}, {"role": "assistant", "content": "a"}],
    )
    asked: dict[str, tuple[str, bytes]] = {
        "text": ("/v1/completions", _packed({"prompt": "word " * 780_000})),
        "prompts": ("/v1/completions", _packed({"prompt": [[7] * 1900] * 64, "max_tokens": 4, "n": 1})),
        "ids": ("/v1/completions", b'{"prompt":[' + b"100000," * 520_000 + b"1]}"),
        "too_many_ids": ("/v1/completions", b'{"prompt":[' + b"1," * 1_900_000 + b"1]}"),
        "strings": ("/v1/completions", b'{"prompt":[' + b'"",' * 1_300_000 + b'""]}'),
        "conversation": ("/v1/chat/completions", _packed({"messages": messages * 2047})),
        "echo": (
            "/v1/completions",
            _packed({"prompt": [[7] * 2000] * 21, "echo": True, "logprobs": 5, "max_tokens": 1}),
        ),
        "scores": (
            "/v1/completions",
            _packed({"prompt": [[7]] * 16, "logprobs": 20, "max_tokens": 512, "ignore_eos": True}),
        ),
        "no_json": ("/v1/completions", b'{"prompt":"' + b"a" * 4_000_000),
        "detokenize": ("/detokenize", _packed({"tokens": [1] * 262_144})),
        "tokenize": ("/tokenize", _packed({"prompt": "word " * 780_000})),
    }
    with Watched(size.setup(16)) as server:
        await server.ready()
        for name, (path, data) in asked.items():
            await server.look()
            statuses = {await server.post(path, data) for _ in range(size.of(ROUNDS, 1))}
            seen = await server.look()
            result.bound(f"{name}_failed", sum(status not in (200, 400) for status in statuses), 0)
            size.timed(result, f"{name}_stall_ms", seen["loop_stall_most_ms"], 50)
            result.figures[f"{name}_lag_ms"] = seen["loop_lag_most_ms"]
        await server.idle()
    return result


def _packed(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def hostile_bytes(size: Size) -> Result:
    """hostile: bytes that are no requests; they are refused, memory stays, and others are not slower for it."""
    result, seconds = Result(), size.of(10, 3) / 10
    latencies = list[float]()
    place: tuple[str, int]

    async def others(server: Watched) -> None:
        while True:
            answer = await ask(server, body([1, 2], 4))
            result.figures["failed"] += answer.error is not None
            latencies.append(1e3 * (answer.ended - answer.began))

    async def while_done(work: Callable[[], Awaitable[None]]) -> list[float]:
        """95th percentiles of the others' milliseconds while something is done again and again."""
        found = list[float]()
        for _ in range(size.of(ROUNDS, 1)):
            latencies.clear()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await work()
            found.append(percentile(sorted(latencies) or [0.0], 95))
        return found

    async def attack(name: str, data: bytes) -> None:
        got = await hostile.send(*place, data)
        right = got.count(b"HTTP/1.1 200 ") == 1000 if name == "pipelined" else got[:10] in REFUSED
        result.figures[f"{name}_wrong"] += not right

    result.figures["failed"] = 0
    nothing = partial(asyncio.sleep, seconds)
    with Watched(size.setup(16)) as server:
        await server.ready()
        place = server.target.host, server.target.port
        asking = asyncio.create_task(others(server))
        await asyncio.sleep(seconds)
        size.timed(result, "alone_p95_ms", await while_done(nothing), 50)
        for name, make in hostile.ATTACKS.items():
            data, before = make(), server.forget_peak()
            result.figures[f"{name}_wrong"] = 0
            times = await while_done(partial(attack, name, data))
            result.bound(f"{name}_wrong", result.figures[f"{name}_wrong"], 0)
            grown = (server.peak() - before) / MIB
            result.bound(f"{name}_grown_mib", grown, size.of(16, 32))  # where it is busy, two may overlap
            size.timed(result, f"{name}_p95_ms", times, 50)
        slow = [
            asyncio.create_task(hostile.drip(*place, data, 0.05)) for data in hostile.SLOW for _ in range(32)
        ]
        size.timed(result, "slow_p95_ms", await while_done(nothing), 50)
        for task in (asking, *slow):
            task.cancel()
        await asyncio.gather(asking, *slow, return_exceptions=True)
    result.bound("failed", result.figures["failed"], 0)
    return result


HOSTILE_FORMS: dict[str, Any] = {
    "endless": {"type": "integer", "multipleOf": 9_999_991},
    "circle": {"$ref": "#/a", "a": {"$ref": "#/a"}},
    "product": {
        "allOf": [
            {"anyOf": [{"type": "string", "pattern": f".*{a}{b}.*"} for b in "abcdef"]} for a in "abcdefghij"
        ]
    },
    "all_at_once": {
        "allOf": [{"type": "string", "pattern": f".*{a}.*"} for a in "abcdefghijklmnopqrstuvwxyz"]
    },
    "looking_behind": {"type": "string", "pattern": "(?<=a)b"},
    "enum": {"enum": list(range(100_000))},
    "no_type": {"type": "wizard"},
}


async def forms(size: Size) -> Result:
    """forms: schemas like those of real tools are followed, hostile ones refused within two seconds."""
    result, first, again = Result(), list[float](), list[float]()

    async def asked(server: Watched, schema: Any, times: list[float]) -> int:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        given = {"messages": [{"role": "user", "content": "a"}], "response_format": form, "max_tokens": 1}
        began = time.monotonic()
        status = await server.post("/v1/chat/completions", _packed(given))
        times.append(1e3 * (time.monotonic() - began))
        return status

    with Watched(size.setup(4)) as server:
        await server.ready()
        schemas = list(tool_schemas())[:: size.of(1, 8)]
        statuses = [await asked(server, schema, first) for schema in schemas]
        for schema in schemas[-8:]:
            await asked(server, schema, again)
        for name, schema in HOSTILE_FORMS.items():
            times = list[float]()
            result.bound(f"{name}_followed", int(await asked(server, schema, times) != 400), 0)
            size.timed(result, f"{name}_ms", times[0], 2000)
        answer = await ask(server, body([1, 2], 4))
    result.figures["schemas"] = len(schemas)
    result.bound("refused_share", sum(status != 200 for status in statuses) / len(statuses), 0.02)
    for name, times in (("first", first), ("again", again)):
        result.figures |= {f"{name}_p{p}_ms": round(percentile(sorted(times), p), 1) for p in (50, 99)}
    result.bound("failed_after", int(answer.error is not None), 0)
    return result


async def faults(size: Size) -> Result:
    """faults: an engine that breaks by an error, a silent end, a hang or a kill, and a server that is killed; every
    request is told, the status says it, nothing is left, and the next server starts. A hang counts from when it is
    one: after `--watchdog`."""
    result, rng, watchdog = Result(), random.Random(8), 2.0
    told, ended, started = dict[str, float](), list[float](), list[float]()
    hows = (*broken_engine.HOWS, "kill", "server")
    for number in range(size.of(20, 5)):
        how = hows[number % len(hows)]
        mark = Path(size.folder).with_name(f"broke-{number}")
        setup = replace(size.setup(4), watchdog=watchdog)
        if how in broken_engine.HOWS:
            broken = (sys.executable, "-m", "benchmarks.broken_engine")
            setup = replace(setup, command=(*broken, how, str(rng.randrange(5, 60)), str(mark)))
        began = time.monotonic()
        with Watched(setup) as server:
            await server.ready()
            started.append(time.monotonic() - began)
            child = server.child
            asked = [asyncio.create_task(ask(server, body(p, 1500))) for p in prompts(8, 24, seed=number)]
            names = ("num_requests_running", "num_requests_waiting")
            while not any(task.done() for task in asked):  # counters come late on a busy machine
                if sum([await server.metric(name) for name in names]) == len(asked):
                    break
                await asyncio.sleep(0.02)
            mark.touch()
            if how in ("kill", "server"):
                mark.write_text(str(time.monotonic()))
                os.kill(child if how == "kill" else server.process.pid, signal.SIGKILL)
            answers = await asyncio.gather(*asked)
            status = await asyncio.to_thread(server.process.wait, 60)
            struck = float(mark.read_text()) + (watchdog if how == "sleep" else 0)
            ended.append(time.monotonic() - struck)
            if how != "server":
                told[how] = max(told.get(how, 0.0), *(answer.ended - struck for answer in answers))
                silent = sum("engine" not in (answer.error or "") for answer in answers)
                result.bound("untold", silent + result.figures.get("untold", 0), 0)
            wrong = int(status != (-9 if how == "server" else 8))
            result.bound("wrong_status", wrong + result.figures.get("wrong_status", 0), 0)
            await until(lambda child=child: not runs(child))  # type: ignore[misc]
            listen("127.0.0.1", server.target.port).close()  # the address is free
    result.figures["rounds"] = len(ended)
    for how, seconds in told.items():
        size.timed(result, f"{how}_told_seconds", seconds, 1 if how != "sleep" else NAPS)
    size.timed(result, "slowest_end_seconds", max(ended), 5)
    result.figures["median_start_seconds"] = round(statistics.median(started), 2)
    return result
