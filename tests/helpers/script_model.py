"""One scripted checkpoint for the server's tests: what it says depends on the last character it reads.

A chat ends with a newline and gets "Hello world", or with an R and gets a thought first, if its template is told
`enable_thinking`. To reach another script, let the prompt of a completion
end with its letter, or the beginning of an answer that is to be continued.
"""

from __future__ import annotations

from pathlib import Path

from tests.helpers.byte_tokenizer import ADDED, CHAT_TEMPLATE, IM_END, SPECIALS, byte_id
from tests.helpers.ladder import TOP, Ladder, chain, step_ids, write_ladder

TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\n' + (tools | tojson) + '<tool_call>' + '<|im_end|>\\n' }}{%- endif %}"
    + CHAT_TEMPLATE
    + "{%- if enable_thinking %}{{- 'R' }}{%- endif %}"
)
VOCAB, CONTEXT = 384, 512
TOOLS_REPLY = (
    "Let me see.",
    '\n<tool_call>\n{"name":"f","arguments":{"a":1}}\n</tool_call>',
    '\n<tool_call>\n{"name":"g","arguments":{}}\n</tool_call>',
)
BROKEN_CALL = '<tool_call>\n{"name":"f","arguments":{"a":\n</tool_call>'
ANSWERS: dict[str, tuple[str | int, ...]] = {
    "T": (*TOOLS_REPLY, "<|im_end|>"),
    "B": (BROKEN_CALL, "<|im_end|>"),
    "E": (" ", 172, 253, 246, 232, "<|im_end|>"),  # " 😊", a byte at a time
    "S": (" alpha", " be", "ta gam", "ma", " delta", "<|im_end|>"),
    "U": ("a\nb\r", "\n\ndata: x", "\u2028\u2029\x85", "<|im_end|>"),
    "R": ("<think>", "hmm", "</think>", "so", "<|im_end|>"),
}
FLAT = tuple(byte_id(ord(letter)) for letter in "0123456789")
"""After F, and after each of these, each of these and the end are equally likely."""


def write_script_model(folder: Path, context: int = CONTEXT) -> Path:
    """Write the checkpoint into `folder` and return it."""
    known = SPECIALS | ADDED
    steps = [step for reply in ANSWERS.values() for step in reply]
    pieces = [
        step for step in steps if isinstance(step, str) and len(step.encode()) > 1 and step not in known
    ]
    reply = ("Hello", " world", "<|im_end|>", *dict.fromkeys(pieces))  # what follows the end is never said
    ids = dict(zip(reply, step_ids(reply), strict=True))
    table: dict[int, dict[int, float]] = {}
    for letter, answer in ANSWERS.items():
        chained = [ids[s] if isinstance(s, str) and s in ids else step_ids([s])[0] for s in answer]
        table |= chain(chained, byte_id(ord(letter)))
    table |= _loop("L", "xy")
    table |= {last: {**dict.fromkeys(FLAT, 5.0), IM_END: 5.0} for last in (byte_id(ord("F")), *FLAT)}
    table[byte_id(ord("P"))] = {byte_id(0xC0 + i): 3.0 - i for i in range(6)}  # pieces of characters
    table |= {ids["Hello"]: {ids[" world"]: TOP}, ids[" world"]: {IM_END: TOP}}
    ladder = Ladder(reply=reply, table=table, vocab=VOCAB, context=context, chat_template=TEMPLATE)
    return write_ladder(folder, ladder)


def _loop(letter: str, body: str) -> dict[int, dict[int, float]]:
    """After `letter`, `body` for ever."""
    steps = [byte_id(ord(character)) for character in (letter, *body, body[0])]
    return {last: {following: TOP} for last, following in zip(steps, steps[1:], strict=False)}
