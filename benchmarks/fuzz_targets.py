"""What reads bytes of strangers, as functions of bytes: they return, or raise an error of ours; all else is a fault.

Each has seeds, right inputs from which a fuzzer departs. `fuzz` runs them for long; the tests run the seeds.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llmrs_cli.engine.model.spec import from_config
from llmrs_cli.engine.weights.gguf import read_gguf
from llmrs_cli.engine.weights.gguf_config import gguf_config
from llmrs_cli.engine.weights.store import read_file
from llmrs_cli.errors import LlmrsError
from llmrs_cli.server.fields import read_fields
from llmrs_cli.server.response_items import response_request
from llmrs_cli.server.schema import DETOKENIZE, RENDER, TOKENIZE
from llmrs_cli.server.sse import decode_body
from llmrs_cli.server.translate import chat_request, completion_request
from llmrs_cli.text.forms import answer_form, structured_form
from llmrs_cli.text.reasoning import Opening, ReasoningSplitter
from llmrs_cli.text.reply import ReplyParser
from llmrs_cli.text.template import ChatTemplate
from llmrs_cli.text.tokenizer import Tokenizer
from llmrs_cli.text.tools import ToolStyle, tool_parser
from tests.helpers.byte_tokenizer import CHAT_TEMPLATE, byte_tokenizer_json
from tests.helpers.gguf_file import GgufFile, Tensor, plain

TOKENIZERS = Path(__file__).parent.parent / "tests/data/tokenizers"
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "a <|im_end|>"}]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}


@dataclass(frozen=True)
class Target:
    """One reader."""

    run: Callable[[bytes], object]
    seeds: Sequence[bytes]

    def __call__(self, data: bytes) -> None:
        """Whatever comes out is no error of ours."""
        try:
            self.run(data)
        except LlmrsError as error:
            assert error.message.isprintable(), "a message must not reach a terminal with control characters"


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="llmrs-fuzz-")


def _file(data: bytes, name: str) -> Path:
    path = Path(_folder().name) / name
    path.unlink(missing_ok=True)  # a file that is written over is flushed to the disk by some file systems
    path.write_bytes(data)
    return path


# -- model files ------------------------------------------------------------------------------------------


def safetensors(data: bytes) -> None:
    """A header, and tensors that lie within the file."""
    for tensor in read_file(_file(data, "model.safetensors")).values():
        tensor.read()


def gguf(data: bytes) -> None:
    """A header, what it says of the model, and tensors that lie within the file."""
    found = read_gguf(_file(data, "model.gguf"))
    for tensor in found.tensors.values():
        tensor.read()
    from_config(gguf_config(found), None)


def config(data: bytes) -> None:
    """A config.json."""
    value = decode_body(data)
    if isinstance(value, dict):
        from_config(value, value)


def tokenizer(data: bytes) -> None:
    """A tokenizer.json, and a text through it."""
    made = Tokenizer(data)
    made.decode(made.encode("hi <|im_end|>\n", markers=True), specials=True)


def template(data: bytes) -> None:
    """A chat template, and a conversation through it."""
    made = ChatTemplate({"default": data.decode("utf-8", "replace")})
    made.render(made.conversation(MESSAGES, tools=[TOOL]))


# -- what clients send, and models write --------------------------------------------------------------------

READERS: tuple[Callable[[Any], object], ...] = (
    chat_request,
    completion_request,
    response_request,
    *(lambda body, table=table: read_fields(table, body) for table in (RENDER, TOKENIZE, DETOKENIZE)),
)


def request(data: bytes) -> None:
    """The body of a request; its first byte says of which kind."""
    READERS[data[0] % len(READERS) if data else 0](decode_body(data[1:]))


def form(data: bytes) -> None:
    """What an answer is held to, in either spelling."""
    value = decode_body(data[1:])
    (structured_form if data[:1] > b"s" else answer_form)(value)


def reply(data: bytes) -> None:
    """An answer in pieces says what it says as a whole; the first bytes are how it is cut."""
    cuts, text = data[:4], data[4:].decode("utf-8", "replace")
    style = list(ToolStyle)[cuts[0] % len(ToolStyle)] if cuts else ToolStyle.TAGGED
    opening = list(Opening)[cuts[1] % len(Opening)] if len(cuts) > 1 else Opening.UNDECIDED
    size = 1 + (cuts[2] % 16 if len(cuts) > 2 else 0)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert _told(style, opening, pieces) == _told(style, opening, [text])


def _told(style: ToolStyle, opening: Opening, pieces: Sequence[str]) -> tuple[str, str, list[Any]]:
    parser = ReplyParser(ReasoningSplitter(opening), tool_parser(style, {"f"}))
    parts = [*map(parser.push, pieces), parser.finish()]
    reasoning, content = ("".join(getattr(part, name) for part in parts) for name in ("reasoning", "content"))
    return reasoning, content, [call for part in parts for call in part.calls]


def _safetensors_seed() -> bytes:
    entries = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]},
    }
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + bytes(24)


def _gguf_seed() -> bytes:
    said = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.embedding_length": 8,
        "llama.feed_forward_length": 16,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 64,
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.eos_token_id": 1,
    }
    pairs = [(key, plain(value)) for key, value in said.items()]
    return GgufFile(pairs, [Tensor("token_embd.weight", [8, 2], 0, bytes(64))]).build()


def _json(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    "tie_word_embeddings": True,
    "eos_token_id": [0, 1],
    "torch_dtype": "bfloat16",
}
CHAT = {"messages": MESSAGES, "model": "m", "stream": True, "stream_options": {"include_usage": True}}
CHAT |= {"tools": [TOOL], "tool_choice": "auto", "logit_bias": {"3": -1}, "stop": ["a"], "n": 2, "seed": 1}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", 1, None]}}, "required": ["a"]}


def _published_templates() -> list[bytes]:
    files = sorted(TOKENIZERS.glob("*/tokenizer_config.json"))
    return [json.loads(file.read_text("utf-8"))["chat_template"].encode() for file in files]


def _tokenizer_seeds() -> list[bytes]:
    """A small one whole, and Qwen2.5's without most of its words."""
    with gzip.open(TOKENIZERS / "qwen2.5/tokenizer.json.gz") as packed:
        large = json.load(packed)
    words = {word: id for word, id in large["model"]["vocab"].items() if id < 256}
    large["model"] |= {"vocab": words, "merges": []}
    return [byte_tokenizer_json(), *_json(large)]


@cache
def targets() -> dict[str, Target]:
    """By name."""
    chat, completion, response, render, tokens, text = range(6)
    bodies = [
        (chat, CHAT),
        (
            chat,
            {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        ),
        (completion, {"prompt": [[1, 2], [3]], "max_tokens": 5, "echo": True, "logprobs": 2}),
        (completion, {"prompt": "a", "structured_outputs": {"regex": "a+"}, "temperature": 0.5}),
        (response, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]}),
        (response, {"input": "a", "tools": [{"type": "function", "name": "f"}], "instructions": "b"}),
        (render, {"messages": MESSAGES}),
        (tokens, {"prompt": "a", "add_special_tokens": False}),
        (text, {"tokens": [1, 2]}),
    ]
    forms = [
        b"a" + one
        for one in _json(
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
            {"type": "regex", "pattern": "[a-z]+"},
            {"type": "grammar", "grammar": 'start: "a"'},
        )
    ]
    forms += [b"z" + one for one in _json({"json": SCHEMA}, {"choice": ["a", "b"]}, {"regex": "a|b"})]
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "}<"}}\n</tool_call>'
    replies = [f"<think>a</think>\n\nb{call}{call}", '{"name": "f", "parameters": {"a": "b"}}', "a <tool_c"]
    return {
        "safetensors": Target(safetensors, [_safetensors_seed()]),
        "gguf": Target(gguf, [_gguf_seed()]),
        "config": Target(config, _json(CONFIG)),
        "tokenizer": Target(tokenizer, _tokenizer_seeds()),
        "template": Target(template, [CHAT_TEMPLATE.encode(), *_published_templates()]),
        "request": Target(request, [bytes([kind]) + _json(body)[0] for kind, body in bodies]),
        "form": Target(form, forms),
        "reply": Target(
            reply, [bytes([i, j, 3, 0]) + one.encode() for one in replies for i in (0, 1) for j in (0, 1, 2)]
        ),
    }
