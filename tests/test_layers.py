"""Imports go in the direction of the design: this table holds it, and the package must match it.

Reads the source as a syntax tree; nothing is imported. The second half starts `llmrs --help` in a
process of its own to see that no array library is loaded.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "llmrs_cli"
HEAVY = {"numpy", "numba", "llvmlite", "cupy", "tokenizers", "huggingface_hub", "jinja2", "safetensors"}

# What each room may import of ours. The longest matching prefix on the left decides; a module may
# always import its own room. `errors` is open to everybody.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "config": (),
    "extras": (),
    "kernels": (),
    "engine": (),
    "engine.types": (),
    "engine.plan": ("engine.types",),
    "engine.arrays": (),
    "engine.limits": ("engine.types",),
    "engine.blocks": ("engine.types", "engine.plan"),
    "engine.sequence": ("engine.types", "engine.plan", "engine.blocks"),
    "engine.scheduler": (
        "engine.types",
        "engine.plan",
        "engine.limits",
        "engine.sequence",
        "engine.blocks",
    ),
    "engine.sampling": ("engine.types", "engine.plan", "engine.arrays"),
    "engine.stats": ("engine.types", "engine.plan"),
    "engine.runner": (
        "engine.types",
        "engine.plan",
        "engine.arrays",
        "engine.model",
        "engine.sampling",
        "engine.backends.base",
        "engine.backends.handles",
    ),
    "engine.api": ("engine",),
    "engine.loop": ("engine",),
    "engine.saturation": ("engine.arrays", "engine.backends.base", "engine.backends.handles"),
    "engine.verify": ("engine",),
    "engine.forced": ("engine",),
    "engine.perplexity": ("engine",),
    "engine.quantise": ("engine",),
    "engine.model": ("engine.backends.base", "engine.backends.handles", "engine.arrays"),
    "engine.weights": (
        "engine.model.spec",
        "engine.model.names",
        "engine.model.fields",
        "engine.model.rope",
        "engine.model.rope_config",
        "engine.backends.base",
        "engine.backends.handles",
        # Not a kernel: the order in which converted checkpoints lie on disk.
        "kernels.marlin_layout",
    ),
    "engine.backends": ("kernels", "engine.weights.packed", "engine.arrays"),
    # What it lacks, and what to type for it.
    "engine.backends.registry": ("engine.backends", "kernels", "extras"),
    # `engine` itself is its public names; TextEngine.open also puts the pieces together.
    "text": ("engine",),
    # Opens engines of its own sizes and looks at what they run on.
    "bench": ("engine", "kernels"),
    "hub": ("config", "engine.model.spec"),
    "chat": ("text", "hub", "engine.types", "config"),
    "batch": ("text", "hub", "engine.types", "config"),
    "server": ("text", "hub", "engine.types", "engine.stats", "config"),
    # Its engine lives in a process of its own: one module opens it there, three speak with it.
    "server.child": ("engine", "text"),
    "server.remote": ("engine.limits", "engine.stats", "engine.types"),
    "server.wire": ("engine.limits", "engine.stats", "engine.types"),
    "server.run": ("text", "engine.weights.small_head"),
    "library": ("cli", "text"),
    "cli": ("text", "hub", "engine", "config", "extras", "chat", "batch", "server", "kernels", "bench"),
}


def modules() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def name_of(path: Path) -> str:
    """'engine.backends.base' for llmrs_cli/engine/backends/base.py; '' for the package itself."""
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module of ours that `path` imports, at any depth, with its line."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} uses a relative import"
            base = node.module or ""
            # `from llmrs_cli.engine import plan` imports the module engine.plan, if there is one.
            names = [
                f"{base}.{alias.name}" if is_module(f"{base}.{alias.name}") else base for alias in node.names
            ]
        else:
            continue
        for name in names:
            if name.split(".")[0] == PACKAGE:
                yield name.removeprefix(PACKAGE).lstrip("."), node.lineno


def is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def inside(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def allowed(name: str) -> tuple[str, ...]:
    rooms = [room for room in MAY_IMPORT if inside(name, room)]
    assert rooms, f"{name} is in no room of the table"
    room = max(rooms, key=len)
    return (*MAY_IMPORT[room], room.split(".")[0] if room.startswith("server") else room, "errors", "")


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    name = name_of(path)
    if name in ("", "__main__"):
        return
    permitted = allowed(name)
    wrong = [
        f"line {line}: {target}"
        for target, line in imports(path)
        if not any(inside(target, prefix) if prefix else target == "" for prefix in permitted)
    ]
    assert not wrong, f"{name} may import {permitted}; " + ", ".join(wrong)


def test_front_ends_never_import_each_other() -> None:
    rooms = ("chat", "batch", "server")
    crossed = [
        (name_of(path), target)
        for path in modules()
        for target, _ in imports(path)
        for mine in rooms
        for other in rooms
        if mine != other and inside(name_of(path), mine) and inside(target, other)
    ]
    assert crossed == []


def test_nothing_from_a_model_could_run_as_code() -> None:
    """No pickle, no eval, no dynamic import of a path, anywhere in the package."""
    banned = {"pickle", "marshal", "dill", "joblib", "shelve"}
    calls = {"eval", "exec", "__import__"}
    found = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import) and any(a.name.split(".")[0] in banned for a in node.names):
                found.append((name_of(path), node.lineno))
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in banned:
                found.append((name_of(path), node.lineno))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in calls:
                found.append((name_of(path), node.lineno))
    assert found == []


def test_no_process_is_ever_forked() -> None:
    """CUDA, OpenMP and Rust threads do not survive a fork."""
    found = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("fork", "forkpty", "forkserver"):
                found.append((name_of(path), node.lineno))
            if isinstance(node, ast.Constant) and node.value in ("fork", "forkserver"):
                found.append((name_of(path), node.lineno))
    assert found == []


def test_help_loads_no_array_library() -> None:
    script = (
        "import sys\n"
        "from llmrs_cli.cli.root import main\n"
        "sys.argv = ['llmrs', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print(sorted(set(sys.modules) & {HEAVY!r}), file=sys.stderr)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stderr.strip() == "[]"
    assert "Usage" in run.stdout
