"""Checkpoints of random weights in the real format on disk, to be served as any other: nothing is downloaded.

A 7B is 15 GB: it is written to /dev/shm where there is room, from one block of noise, as fast as memory is.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llmrs_cli.cli.models import model_named
from llmrs_cli.engine.weights.packed import f32_to_bf16
from tests.helpers.tiny_model import TinyModel, write_tiny

QWEN = Path(__file__).parent.parent / "tests/data/tokenizers/qwen2.5"
TINY = TinyModel(hidden=64, ffn=128, context=16_384)
BLOCK = 4_194_301
"""Values of noise; a prime, so that rows of a matrix never repeat in step."""
RAM = Path("/dev/shm")


@contextmanager
def random_model(name: str) -> Iterator[Path]:
    """The folder of a checkpoint, as long as the block lasts: "tiny", or an alias of a dense Qwen2.5."""
    if name == "tiny":
        with tempfile.TemporaryDirectory(prefix="llmrs-") as place:
            yield write_tiny(Path(place) / name, TINY)
        return
    alias = model_named(name).alias
    assert alias is not None, "random weights need an alias"
    config = dict(alias.config)
    room = RAM if RAM.is_dir() and shutil.disk_usage(RAM).free > 2 * _size(config) else None
    with tempfile.TemporaryDirectory(prefix="llmrs-", dir=room) as place:
        folder = Path(place)
        (folder / "config.json").write_text(json.dumps(config))
        with gzip.open(QWEN / "tokenizer.json.gz") as packed:
            (folder / "tokenizer.json").write_bytes(packed.read())
        shutil.copy(QWEN / "tokenizer_config.json", folder)
        _write(folder / "model.safetensors", _shapes(config))
        yield folder


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Qwen2 checkpoint by its name on the Hub."""
    c, f, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv = c // heads * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], c)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for projection, size in (("q", c), ("k", kv), ("v", kv)):
            shapes[f"{layer}self_attn.{projection}_proj.weight"] = (size, c)
            shapes[f"{layer}self_attn.{projection}_proj.bias"] = (size,)
        shapes[f"{layer}self_attn.o_proj.weight"] = (c, c)
        shapes[f"{layer}mlp.gate_proj.weight"] = shapes[f"{layer}mlp.up_proj.weight"] = (f, c)
        shapes[f"{layer}mlp.down_proj.weight"] = (c, f)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{norm}.weight"] = (c,)
    shapes["model.norm.weight"] = (c,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], c)
    return shapes


def _size(config: Mapping[str, Any]) -> int:
    return 2 * sum(map(math.prod, _shapes(config).values()))


def _write(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A safetensors file in bfloat16: deviation 0.02, norms of one."""
    noise = f32_to_bf16(np.random.default_rng(0).standard_normal(2 * BLOCK, np.float32) * np.float32(0.02))
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for number, (name, shape) in enumerate(shapes.items()):
            if name.endswith("norm.weight"):
                out.write(f32_to_bf16(np.ones(shape, np.float32)).tobytes())
                continue
            start, left = 7919 * number % BLOCK, math.prod(shape)
            while left:
                count = min(left, BLOCK)
                out.write(noise[start : start + count].data)
                left -= count
