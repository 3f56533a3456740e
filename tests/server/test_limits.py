"""The limits that SECURITY.md names are those that hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrs_cli.engine import masks, types
from llmrs_cli.server import bridge, budget, schema, service, settings, sse
from llmrs_cli.text import grammar, grammar_child, sandbox

PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text("utf-8")
DEFAULTS = settings.ServerSettings()
MIB, KIB = 1024 * 1024, 1024
HOLD = (
    f"| body of a request | {settings.MAX_BODY // MIB} MiB, nested {sse.MAX_DEPTH} deep,"
    f" {sse.MAX_PARTS:,} strings, lists and objects,"
    f" {sse.MAX_VALUES:,} values, within {settings.BODY_SECONDS:g} s |",
    f"| header | {settings.MAX_HEADER_BYTES // KIB} KiB, {settings.MAX_HEADERS} lines,"
    f" within {settings.HEADER_SECONDS:g} s |",
    f"| {settings.MAX_CONNECTIONS:,}; {DEFAULTS.queue} |",
    f"| {schema.MAX_CHOICES}; {schema.MAX_PROMPTS} |",
    f"| prompts times choices times tokens | {budget.CONTEXTS} contexts |",
    f"| stop strings | {schema.MAX_STOPS} of {schema.MAX_STOP_LENGTH} characters |",
    f"| {types.MAX_LOGPROBS}; {schema.MAX_PROMPT_LOGPROBS} |",
    f"| log-probabilities of a request, its prompts' too | {budget.MAX_SCORES:,} |",
    f"| biases | {types.MAX_BIAS_ENTRIES:,}, from -{types.BIAS_LIMIT:g} to {types.BIAS_LIMIT:g} |",
    f"| {schema.MAX_MESSAGES:,}; {schema.MAX_TOOLS} |",
    f"| schema | {grammar.MAX_SCHEMA // KIB} KiB, nested {grammar.MAX_SCHEMA_DEPTH} deep,"
    f" {grammar.MAX_ENUM:,} values of an enum |",
    f"| pattern | {grammar.MAX_REGEX:,} characters |",
    f"| compiling a form and beginning an answer | {grammar_child.SECONDS:g} s of processor time,"
    f" {grammar_child.MEMORY // MIB} MiB |",
    f"| forms of one key that wait to be tried | {service.MAX_FORMS} |",
    f"| compiled forms that are kept | {grammar.MAX_CACHED}, of some 8 MiB at most |",
    f"| following the form of one answer | {masks.BUDGET:g} s of processor time; others wait {1e3 * masks.GRACE:g} ms",
    f"| rendering a conversation | {sandbox.CPU_SECONDS:g} s of processor time, and"
    f" {sandbox.SECONDS_PER_INPUT * 1e6:g} µs more a character, up to {sandbox.MOST_SECONDS:g} s: ",
    "| what a rendering makes, its text and all on the way to it |"
    f" {sandbox.UNITS:,} characters and list entries, and {sandbox.UNITS_PER_INPUT} more a character of what goes in |",
    f"| template | {sandbox.MAX_SOURCE:,} characters |",
    f"| unread stream | {settings.STALL_SECONDS:g} s, {bridge.MAX_UNREAD // MIB} MiB a choice"
    f" (the events in it are joined from {bridge.MAX_EVENTS} on: ",
    f"| body of a refused request that is still received, unread | {settings.MAX_BODY // MIB} MiB |",
    f"| waiting for a token (`--deadline`) | {DEFAULTS.deadline:g} s |",
)


@pytest.mark.parametrize("row", HOLD)
def test_the_page_names_the_limit_that_holds(row: str) -> None:
    assert row in PAGE
