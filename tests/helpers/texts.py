"""Hypothesis texts that decoders have stumbled over: emoji, brackets, quotes, tabs, blank lines."""

from __future__ import annotations

from hypothesis import strategies as st

CLASSIC = (
    "\n \n",
    "\t",
    "  ",
    "{'a': [",
    '"]}',
    "</b>",
    "<|",
    "|>",
    "?\n\n",
    "😊",
    "👩‍👩‍👧",
    "龘",
    "é",
    "ß",
    "中文",
    "a",
    "the ",
)

awkward_texts = st.lists(st.one_of(st.sampled_from(CLASSIC), st.text(max_size=4)), max_size=12).map("".join)
"""Valid Unicode, without lone surrogates."""
