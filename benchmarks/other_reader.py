"""Files of `llmrs quantize`, read by others: the same weights and the same answers?

    python benchmarks/other_reader.py PYTHON[,PYTHON] FOLDER... > benchmarks/other-reader.json

PYTHON is an interpreter that has either vLLM, or torch, transformers and autoawq, none of which we use. There this
file is run once more. vLLM loads the folder and answers; its weights are not seen. Else transformers makes the
model of config.json, exchanges its layers for AutoAWQ's `WQLinear_GEMM`, and takes the tensors of the file by name,
none missing and none left; AutoAWQ's own code dequantises them. No GPU is needed. Compared are the weights of every
layer, bit for bit in float16, and greedy answers: theirs with activations in float16, ours in float32, so that
tokens which are nearly as likely may differ.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):")
TOKENS = 24
LIBRARIES = ("torch", "transformers", "awq")
THERE = "there"
"""Says that it is the other interpreter that runs this file."""
Found = tuple[dict[str, str], dict[str, Any]]
"""Versions, and arrays by name."""


def read_there(folder: Path, out: Path) -> None:
    """In the other interpreter: what it reads, into `out`, as NumPy's archive."""
    read = by_vllm if importlib.util.find_spec("vllm") else by_autoawq
    versions, found = read(folder)
    np.savez(out, versions=np.array(json.dumps({"python": platform.python_version()} | versions)), **found)


def by_vllm(folder: Path) -> Found:
    """Versions, and greedy ids."""
    vllm = importlib.import_module("vllm")
    model = vllm.LLM(str(folder), dtype="float16", max_model_len=512, enforce_eager=True)
    greedy = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    found: dict[str, Any] = {}
    for number, answer in enumerate(model.generate(list(PROMPTS), greedy)):
        found[f"prompt {number}"] = np.array(answer.prompt_token_ids)
        found[f"answer {number}"] = np.array(answer.outputs[0].token_ids)
        found[f"text {number}"] = np.array(answer.outputs[0].text)
    return {"vllm": vllm.__version__, "torch": importlib.import_module("torch").__version__}, found


def by_autoawq(folder: Path) -> Found:
    """Versions, weights of each layer and greedy ids."""
    torch, transformers, awq = (importlib.import_module(name) for name in LIBRARIES)
    swap = importlib.import_module("transformers.integrations").replace_with_awq_linear
    packing = importlib.import_module("awq.utils.packing_utils")
    linear = importlib.import_module("awq.modules.linear.gemm").WQLinear_GEMM
    load_file = importlib.import_module("safetensors.torch").load_file
    config = transformers.AutoConfig.from_pretrained(folder)
    settings = transformers.AwqConfig(
        **{k: v for k, v in config.quantization_config.items() if k != "quant_method"}
    )
    model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.float16)
    model, swapped = swap(model, quantization_config=settings, modules_to_not_convert=["lm_head"])
    assert swapped
    tensors = load_file(folder / "model.safetensors")
    if config.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors, strict=True)
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, linear):
            pieces = module.qweight, module.qzeros, module.scales
            found[name] = packing.dequantize_gemm(*pieces, module.w_bit, module.group_size).T.numpy()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for number, prompt in enumerate(PROMPTS):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        every = model.generate(ids, max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
        answer = every[0, ids.shape[1] :]
        found[f"prompt {number}"], found[f"answer {number}"] = ids[0].numpy(), answer.numpy()
        found[f"text {number}"] = np.array(tokenizer.decode(answer))
    versions = {"transformers": transformers.__version__, "autoawq": awq.__version__}
    return versions | {"torch": torch.__version__}, found


def compare(folder: Path, there: Any) -> dict[str, Any]:
    """What the other reader found, beside what we do."""
    from llmrs_cli.engine.backends.cpu import CpuBackend
    from llmrs_cli.engine.forced import load
    from llmrs_cli.engine.verify import forced_logits
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(folder)
    quantised = {n.removesuffix(".weight"): p for n, p in checkpoint.parameters.items() if p.is_quantised}
    read = set(there.files) & quantised.keys()
    equal = [
        name
        for name, parameter in quantised.items()
        if name in read and np.array_equal(parameter.read().dequantise().astype(np.float16), there[name])
    ]
    loaded = load(checkpoint, CpuBackend())
    answers = []
    for number in range(len(PROMPTS)):
        prompt, answer = there[f"prompt {number}"].tolist(), there[f"answer {number}"].tolist()
        logits = forced_logits(loaded, (*prompt, *answer), len(prompt))
        lost = logits.max(axis=1) - logits[np.arange(len(answer)), answer]
        answers.append(
            {
                "prompt": PROMPTS[number],
                "answer": str(there[f"text {number}"]),
                "tokens": len(answer),
                "ours too": int((lost == 0).sum()),
                "logit that the others lack at most": float(lost.max()),
            }
        )
    return {
        "read by": json.loads(str(there["versions"])),
        "layers": len(quantised),
        "layers dequantised there": len(read),
        "equal in every bit": len(equal),
        "greedy answers": answers,
    }


def main() -> None:
    pythons, *folders = sys.argv[1:]
    found = []
    for folder, python in product(map(Path, folders), pythons.split(",")):
        with tempfile.TemporaryDirectory() as name:
            out = Path(name) / "found.npz"
            subprocess.run([python, __file__, THERE, str(folder), str(out)], check=True, stdout=sys.stderr)
            with np.load(out) as there:
                found.append({"model": folder.name} | compare(folder, there))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == THERE:
        read_there(*map(Path, sys.argv[2:]))
    else:
        main()
