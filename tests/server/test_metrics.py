"""What /metrics shows: vLLM's names, and figures that follow what was done."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest

from llmrs_cli.engine.types import FinishReason, Request, TokenEvent
from llmrs_cli.server.child import PACE
from tests.helpers.bench import Bench, Client
from tests.helpers.served import Served, wait_until

SERIES = {
    **dict.fromkeys(("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"), "gauge"),
    **dict.fromkeys(("time_to_first_token_seconds", "inter_token_latency_seconds"), "histogram"),
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    **dict.fromkeys(("prompt_tokens", "generation_tokens", "prefix_cache_queries"), "counter"),
    **dict.fromkeys(("prefix_cache_hits", "request_success", "num_preemptions"), "counter"),
}


def exposition(server: Served) -> str:
    return server.get("/metrics").data.decode()


def value(text: str, series: str) -> float:
    """A sample; 0 if it was never counted."""
    found = re.search(rf"^llmrs:{re.escape(series)} (.*)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_every_series_is_there_with_its_kind(server: Served) -> None:
    server.post("/v1/completions", {"prompt": "say L", "max_tokens": 2})
    text = exposition(server)
    for name, kind in SERIES.items():
        suffix = "_total" if kind == "counter" else ""
        assert f"# TYPE llmrs:{name}{suffix} {kind}" in text


@pytest.mark.parametrize("stream", [False, True])
def test_figures_follow_an_answer(server: Served, stream: bool) -> None:
    server.settle()
    time.sleep(2 * PACE)  # until what was done before is told
    before = exposition(server)
    prompt = "0123456789" * 6 + ("S" if stream else "L")
    for _ in range(2):
        server.post(
            "/v1/completions", {"prompt": prompt, "max_tokens": 3, "temperature": 0, "stream": stream}
        )
    tokens = value(before, 'generation_tokens_total{model_name="script"}')
    wait_until(lambda: server.metric("generation_tokens_total") >= tokens + 6)
    after = exposition(server)

    def grown(series: str) -> float:
        return value(after, series) - value(before, series)

    model = '{model_name="script"}'
    assert grown(f"generation_tokens_total{model}") == 6
    assert grown(f"prompt_tokens_total{model}") == 2 * len(prompt)
    assert 0 < grown(f"prefix_cache_hits_total{model}") < 2 * len(prompt)
    assert grown(f"time_to_first_token_seconds_count{model}") == 2
    assert grown(f"e2e_request_latency_seconds_count{model}") == 2
    assert grown(f"request_queue_time_seconds_count{model}") == 2
    assert grown('request_success_total{finished_reason="length",model_name="script"}') == 2
    assert grown('http_responses_total{path="/v1/completions",status="200"}') == 2


def counted(text: str, series: str) -> dict[str, float]:
    """A counter's samples by the one label beside the model's name."""
    found = re.findall(rf"^llmrs:{series}_total{{(.*)}} (.*)$", text, re.MULTILINE)
    return {re.sub(r',?(model_name|path)="[^"]*",?', "", labels): float(value) for labels, value in found}


def test_every_answer_that_was_begun_ends_once_whatever_becomes_of_its_client() -> None:
    """Two choices each: of a stream and a whole answer whose clients leave, one that stays, and one that fails."""

    def script(request: Request) -> list[TokenEvent]:
        if request.prompt_ids[-1] == 9:
            return [TokenEvent(request.id, finish=FinishReason.ERROR, error="No.")]
        return [TokenEvent(request.id, (40,)), TokenEvent(request.id, (41,), finish=FinishReason.LENGTH)]

    async def scene() -> str:
        bench = Bench(script, at_once=False)
        ask = {"prompt": [5], "max_tokens": 2, "n": 2}
        leaving = [Client({**ask, "stream": True}), Client(ask)]
        tasks = [bench.ask(client) for client in (*leaving, Client(ask), Client({**ask, "prompt": [9]}))]
        while len(bench.engine.requests) < 8:
            await asyncio.sleep(0.001)
        bench.engine.play()
        while not leaving[0].sent:
            await asyncio.sleep(0.001)
        for client in leaving:
            client.left.set()
        await asyncio.gather(*tasks[:2])
        bench.engine.play()
        await asyncio.gather(*tasks)
        statuses = [json.loads(line)["status"] for line in bench.log.getvalue().splitlines()]
        assert sorted(statuses) == [200, 499, 499, 500]
        return bench.service.metrics.text().decode()

    text = asyncio.run(scene())
    ends = {'finished_reason="abort"': 5.0, 'finished_reason="length"': 2.0, 'finished_reason="error"': 1.0}
    assert counted(text, "request_success") == ends  # one choice fails and with it the request
    assert counted(text, "http_responses") == {'status="499"': 2.0, 'status="200"': 1.0, 'status="500"': 1.0}


def test_a_refusal_is_a_response_and_no_answer(server: Served) -> None:
    before = exposition(server)
    server.post("/v1/completions", {"prompt": 5})
    after = exposition(server)
    series = 'http_responses_total{path="/v1/completions",status="400"}'
    assert value(after, series) == value(before, series) + 1
    assert value(after, 'time_to_first_token_seconds_count{model_name="script"}') == value(
        before, 'time_to_first_token_seconds_count{model_name="script"}'
    )
