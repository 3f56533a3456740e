"""The load generator: its figures by hand-made answers, and a run against the real server."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from llmrs_cli.cli.root import root
from llmrs_cli.errors import UsageError
from llmrs_cli.server.load import Plan, bodies, gaps, percentile, report
from llmrs_cli.server.load_client import Answer, Target, complete
from tests.helpers.served import Served

PLAN = Plan("m", vocab=100, prompts=50, input_tokens=10, output_tokens=4)
FIRST = Answer(10, began=1.0, arrivals=[1.5, 1.6, 1.8], ended=2.0, tokens=6)
SECOND = Answer(20, began=1.0, arrivals=[1.1], ended=1.1, tokens=1)
LOST = Answer(10, began=1.0, ended=3.0, error="gone")
VLLM_KEYS = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens"),
    *("total_output_tokens", "request_throughput", "request_goodput", "output_throughput"),
    *("total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests"),
    *(
        f"{kind}_{name}_ms"
        for kind in ("mean", "median", "std", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    ),
}


def test_figures_are_what_their_names_say() -> None:
    figures = report(PLAN, [FIRST, SECOND, LOST], 2.0)
    assert figures.keys() >= VLLM_KEYS
    assert (figures["completed"], figures["failed"]) == (2, 1)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (30, 7)
    assert figures["output_throughput"] == 3.5
    assert figures["total_token_throughput"] == 18.5
    assert figures["mean_ttft_ms"] == pytest.approx(300)
    assert figures["mean_tpot_ms"] == pytest.approx(100)  # (1.0 s - 0.5 s) / 5; one token alone has none
    assert figures["mean_itl_ms"] == pytest.approx(150)
    assert figures["mean_e2el_ms"] == pytest.approx(550)
    assert figures["max_concurrent_requests"] == 3
    assert figures["max_output_tokens_per_s"] == pytest.approx(7)
    assert figures["request_goodput"] is None


def test_goodput_counts_what_met_every_limit() -> None:
    plan = Plan("m", 100, goodput={"ttft": 600, "e2el": 900})
    assert report(plan, [FIRST, SECOND], 2.0)["request_goodput"] == 0.5


def test_a_run_without_an_answer_has_figures_too() -> None:
    assert report(PLAN, [LOST], 1.0)["mean_ttft_ms"] == 0.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 100))
def test_percentiles_are_numpy_s(values: list[float], p: float) -> None:
    import numpy as np

    assert percentile(sorted(values), p) == pytest.approx(float(np.percentile(values, p)), abs=1e-6)


def test_requests_are_a_function_of_the_plan() -> None:
    assert bodies(PLAN) == bodies(PLAN)
    assert bodies(PLAN) != bodies(Plan("m", 100, prompts=50, input_tokens=10, output_tokens=4, seed=1))
    for body in bodies(PLAN):
        assert (len(body["prompt"]), body["max_tokens"]) == (10, 4)
        assert max(body["prompt"]) < 100


def test_lengths_vary_within_their_share() -> None:
    plan = Plan("m", 100, prompts=200, input_tokens=10, output_tokens=4, range_ratio=0.5)
    assert {len(body["prompt"]) for body in bodies(plan)} == set(range(5, 16))


def test_arrivals_keep_their_rate() -> None:
    assert set(gaps(PLAN)) == {0.0}
    for burstiness in (0.5, 1.0, 4.0):
        plan = Plan("m", 100, prompts=5000, rate=10, burstiness=burstiness)
        assert sum(gaps(plan)) / 5000 == pytest.approx(0.1, rel=0.15)
    assert math.isinf(PLAN.rate)


@pytest.mark.parametrize("url", ["localhost:8000", "https://x", "ftp://x", "http://", ""])
def test_an_address_is_an_http_address(url: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        Target.of(url)


def test_an_address_may_name_the_api() -> None:
    assert Target.of("http://localhost:8000/v1/") == Target("localhost", 8000, "")
    assert Target.of("http://box/llm") == Target("box", 80, "/llm")


def test_a_running_server_is_measured(server: Served) -> None:
    flags = [
        "--num-prompts",
        "12",
        "--random-input-len",
        "8",
        "--random-output-len",
        "5",
        "--max-concurrency",
        "4",
        "--json",
    ]
    result = CliRunner().invoke(root, ["bench", "serve", "--url", server.url, *flags])
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["completed"], figures["failed"]) == (12, 0)
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (96, 60)
    assert figures["max_concurrent_requests"] <= 4


def test_requests_that_fail_are_counted(server: Served) -> None:
    flags = ["--num-prompts", "2", "--random-input-len", "600", "--random-output-len", "5"]
    result = CliRunner().invoke(root, ["bench", "serve", "--url", server.url, *flags])
    assert result.exit_code == 1
    assert result.stdout.startswith("0 answered, 2 failed")


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(root, ["bench", "serve", "--url", "http://127.0.0.1:9"])
    assert result.exit_code == 7
    assert "does not answer" in result.stderr


def test_limits_have_names_we_know() -> None:
    result = CliRunner().invoke(root, ["bench", "serve", "--goodput", "speed:5"])
    assert result.exit_code == 2
    assert "ttft:200" in result.stderr


# -- the client, before a server that sends what it is told to ----------------------------------------------

STREAM = b"".join(
    b"%x\r\n%b\r\n" % (len(part), part)
    for part in (
        b'data: {"choices":[{"text":"He","finish_reason":null}]}\n\ndata: {"choices":',
        b'[{"text":"llo","finish_reason":"length"}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
        b"data: [DONE]\n\n",
        b"",
    )
)
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer_to(pieces: Iterable[bytes]) -> Answer:
    """What the client makes of a response that comes in pieces."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async def scene() -> Answer:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await complete(Target("127.0.0.1", port, ""), {}, 9)

    return asyncio.run(scene())


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    data = HEAD + STREAM
    answer = answer_to(data[i : i + size] for i in range(0, len(data), size))
    assert (answer.error, answer.status, answer.text) == (None, 200, "Hello")
    assert (answer.prompt_tokens, answer.tokens, len(answer.arrivals)) == (3, 2, 2)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no answer"),
        (HEAD + STREAM[:40], "cut off"),
        (HEAD + STREAM.replace(b"data: [DONE]", b"data: [NONE]"), "without its [DONE]"),
        (HEAD + b"5\r\ndata:\r\n0\r\n\r\n", "without its usage"),
        (HEAD + b"zz\r\n\r\n", "ValueError"),
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\nlater", "status 429: b'later'"),
        (b"SSH-2.0-x nothing\r\n\r\n", "ValueError"),
        (
            HEAD + b'1b\r\ndata: {"error":{"message":1}}\r\n2\r\n\n\n\r\n0\r\n\r\n',
            "1",
        ),
    ],
    ids=["nothing", "cut off", "no end", "no usage", "no size", "refused", "not HTTP", "an error"],
)
def test_whatever_is_wrong_with_an_answer_is_told(data: bytes, said: str) -> None:
    assert said in (answer_to([data]).error or "")
