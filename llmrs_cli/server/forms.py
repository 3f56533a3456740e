"""Where a body says what its answer is held to: OpenAI's response_format, or vLLM's structured_outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrs_cli.server.kinds import plain_object, refuse
from llmrs_cli.text.forms import (
    MAX_CHOICE,
    MAX_CHOICES,
    STRUCTURED,
    AnswerForm,
    answer_form,
    structured_form,
)
from llmrs_cli.text.grammar import FIELD

STRUCTURED_OUTPUTS = plain_object(
    {
        "properties": {
            "json": {"type": ["object", "string", "null"]},
            "json_object": {"enum": [True, None]},
            "regex": {"type": ["string", "null"]},
            "choice": {
                "type": ["array", "null"],
                "items": {"type": "string", "minLength": 1, "maxLength": MAX_CHOICE},
                "minItems": 1,
                "maxItems": MAX_CHOICES,
            },
            "grammar": {"type": ["string", "null"]},
        },
        "additionalProperties": False,
    }
)
"""Exactly one is to be given; `text.forms` reads it."""


def asked_form(given: Mapping[str, Any]) -> AnswerForm:
    """The form that a body asks for. RequestError for one that is none of ours."""
    if STRUCTURED not in given:
        return answer_form(given[FIELD]) if FIELD in given else AnswerForm()
    if FIELD in given:
        raise refuse(STRUCTURED, f"left out where there is a {FIELD}")
    return structured_form(given[STRUCTURED])
