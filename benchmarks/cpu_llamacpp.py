"""The llama.cpp side of `cpu_smollm2`: measures on request, one JSON line in, one number out.

Run by that script with the interpreter of an environment that has llama-cpp-python; imports nothing of
ours. Calls llama.cpp itself, so that its own Python layer costs it nothing.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from importlib import import_module
from typing import Any

api: Any = import_module("llama_cpp")


def open_model(path: str, threads: int) -> tuple[Any, Any]:
    """A context of 1024 tokens; prompts in one piece."""
    api.llama_backend_init()
    quiet = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(quiet, ctypes.c_void_p(0))
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = 1024, 512, 512
    settings.n_threads = settings.n_threads_batch = threads
    return api.llama_init_from_model(model, settings), quiet


def feed(context: Any, ids: list[int]) -> None:
    """Compute tokens at the next positions and wait for the logits of the last one."""
    array = (ctypes.c_int32 * len(ids))(*ids)
    assert api.llama_decode(context, api.llama_batch_get_one(array, len(ids))) == 0
    api.llama_get_logits(context)


def measure(context: Any, what: str, prompt: list[int], count: int) -> float:
    """Tokens a second of the prompt, or of `count` tokens after it."""
    api.llama_memory_clear(api.llama_get_memory(context), True)
    started = time.perf_counter()
    feed(context, prompt)
    if what == "prompt":
        return len(prompt) / (time.perf_counter() - started)
    started = time.perf_counter()
    for token in range(count):
        feed(context, [100 + token])
    return count / (time.perf_counter() - started)


def main() -> None:
    context, quiet = open_model(sys.argv[1], int(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        print(measure(context, **json.loads(line)), flush=True)
    del quiet


if __name__ == "__main__":
    main()
