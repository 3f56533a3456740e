"""What a model is, which files it has, and whether it fits here.

llmrs show MODEL [--check] [--json]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from llmrs_cli.cli import complete
from llmrs_cli.cli.copies import copies_of
from llmrs_cli.cli.models import model_named
from llmrs_cli.cli.options import json_option, revision_option, room_options
from llmrs_cli.cli.table import table
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import directories, load_settings
from llmrs_cli.errors import (
    AccessError,
    DoesNotFitError,
    ModelError,
    NetworkError,
    UsageError,
    counted,
    quoted,
)

if TYPE_CHECKING:
    from llmrs_cli.cli.look import Look
    from llmrs_cli.cli.room import Room
    from llmrs_cli.hub.access import HubAccess
    from llmrs_cli.hub.names import ModelName


@click.command("show")
@click.argument("model", metavar="MODEL", shell_complete=complete.models)
@revision_option
@room_options
@click.option("--offline", is_flag=True, help="Do not ask the Hub about a model that is not here.")
@click.option("--check", is_flag=True, help="Read every file and say whether it is what the Hub listed.")
@json_option
def command(
    model: str,
    revision: str | None,
    device: str | None,
    ctx: int | None,
    rows: int | None,
    offline: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Show what a model is and whether it fits here.

    A model that is not on this machine is looked up on the Hub, without fetching its weights.

    \b
      llmrs show qwen2.5-3b
      llmrs show Qwen/Qwen3-8B --ctx 32k --rows 4
      llmrs show ./my-model --json | jq .memory.largest_context
      llmrs show qwen2.5-3b --check
    """
    from llmrs_cli.cli.room import measure_room
    from llmrs_cli.hub.access import HubAccess

    terminal = Terminal.standard()
    name = model_named(model, revision)
    access = HubAccess.from_environment(offline=load_settings({"offline": offline or None}).offline.value)
    if check:
        _check_files(name, access, terminal, as_json)
        return
    look = _look(name, access, terminal)
    report = describe(name, access, look, measure_room(device, ctx, rows, terminal))
    if as_json:
        terminal.data(json.dumps(report))
        return
    for line in table(list(lines(report))):
        terminal.data(line)


def _check_files(name: ModelName, access: HubAccess, terminal: Terminal, as_json: bool) -> None:
    """Say of each file whether it is whole.

    Raises ModelError if one is not, UsageError where nothing says what they should be.
    """
    from llmrs_cli.cli.look import where
    from llmrs_cli.hub.shelf import damaged_files

    _, commit = where(name, access)
    if name.repo is None:
        raise UsageError(
            f"{quoted(name.text)} did not come from the Hub, so nothing says what its files should be.",
            hint="Leave out --check.",
        )
    if commit is None:
        raise UsageError(
            f"{quoted(name.text)} is not on this machine.", hint=f"Run 'llmrs pull {name.text}' first."
        )
    found = dict(damaged_files(access.hub, name.repo, commit))
    if as_json:
        terminal.data(json.dumps({"model": name.text, "commit": commit, "damaged": found}))
    else:
        for line in table([(file, "damaged" if damaged else "whole") for file, damaged in found.items()]):
            terminal.data(line)
    if damaged := [file for file, wrong in found.items() if wrong]:
        raise ModelError(
            f"Of {quoted(name.text)}, {counted(len(damaged), 'file')} changed after the download: "
            f"{', '.join(damaged)}.",
            hint=f"Run 'llmrs rm {name.text}' and 'llmrs pull {name.text}'.",
        )


def _look(name: ModelName, access: HubAccess, terminal: Terminal) -> Look:
    """The model here, else on the Hub, else (offline, or refused there) in our table."""
    from llmrs_cli.cli.look import look_here, look_online, look_up

    if (found := look_here(name, access)) is not None:
        return found
    listed = look_up(name)
    if name.kind == "repo" and not access.offline:
        try:
            return look_online(name, access)
        except (AccessError, NetworkError) as error:
            if listed is None:
                raise
            terminal.warn(str(error))
    if listed is not None:
        return listed
    raise NetworkError(
        f"{quoted(name.text)} is not on this machine, and the Hub is not to be asked.",
        hint="Leave out --offline and HF_HUB_OFFLINE.",
    )


def describe(name: ModelName, access: HubAccess, look: Look, room: Room) -> dict[str, Any]:
    """Everything that `--json` says; sizes in bytes, lengths in tokens, null for what is not known."""
    from llmrs_cli.cli.licences import licence_of
    from llmrs_cli.cli.look import pins
    from llmrs_cli.engine.model.spec import from_config

    spec = from_config(look.config) if look.config else None
    copies = [] if look.path is None else copies_of(name, directories())
    return {
        "model": name.text,
        "source": look.source,
        "repo": name.repo,
        "commit": look.commit,
        "kept": [{"commit": kept.commit, "revisions": list(kept.revisions)} for kept in pins(name, access)],
        "path": None if look.path is None else str(look.path),
        "family": spec and spec.family,
        "parameters": look.parameters,
        "layers": spec and spec.layers,
        "hidden": spec and spec.hidden,
        "heads": spec and spec.heads,
        "kv_heads": spec and spec.kv_heads,
        "head_dim": spec and spec.head_dim,
        "vocabulary": spec and spec.vocab,
        "weights": list(look.formats) or (_formats(look.config) if look.config else []),
        "context": spec and spec.max_context,
        "licence": look.licence or (licence_of(name.repo) if name.repo else None),
        "gated": None if name.alias is None else name.alias.gated,
        "chat_template": look.chat,
        "converted_from": look.converted_from,
        "quantized_from": look.quantized_from,
        "converted_copies": [{"path": str(copy.path), "size": copy.size} for copy in copies],
        "files": [{"name": file.name, "size": file.size, "here": file.here} for file in look.files],
        "memory": _memory(name.text, look, room) if spec else None,
    }


def _formats(config: Mapping[str, object]) -> list[str]:
    """How weights are stored, as far as a configuration says it."""
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    match config.get("quantization_config"):
        case {"quant_method": method, **rest}:
            bits = f"{rest['bits']}-bit " if "bits" in rest else ""
            return [f"{bits}{str(method).upper()}", dtype]
        case _:
            return [dtype] if dtype else []


def _memory(name: str, look: Look, room: Room) -> dict[str, Any]:
    """Whether the model fits on this machine, and with which context; if not, what would."""
    from llmrs_cli.hub.fit import require_fit

    plan = room.plan(look.config, look.weights)
    advice = None
    try:
        require_fit(plan, name)
    except DoesNotFitError as error:
        advice = error.hint
    return {
        "device": room.device,
        "free": plan.free,
        "weights": plan.weights,
        "kv_per_token": plan.kv_per_token,
        "context": plan.context,
        "rows": plan.parallel,
        "needed": plan.needed,
        "fits": plan.fits,
        "largest_context": plan.largest_context,
        "advice": advice,
    }


def lines(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The report for people: a word and what it is."""
    from llmrs_cli.hub.files import size_text

    yield "model", report["model"]
    if report["repo"]:
        yield "repository", report["repo"] + (", gated" if report["gated"] else "")
    if report["commit"]:
        yield "commit", report["commit"]
    for kept in report["kept"]:
        yield "kept", " ".join([kept["commit"], *kept["revisions"]])
    yield "where", report["path"] or f"not on this machine; from {report['source']}"
    if report["family"]:
        yield from _sizes(report)
    if report["converted_from"]:
        yield "converted", f"from {report['converted_from']}, into the order of the kernels"
    if report["quantized_from"]:
        yield "quantised", f"from {report['quantized_from']}, by llmrs quantize"
    for copy in report["converted_copies"]:
        yield "copy", f"converted, {size_text(copy['size'])}, {copy['path']}"
    if report["licence"]:
        yield "licence", report["licence"]
    if report["chat_template"] is not None:
        yield "chat", "has a template" if report["chat_template"] else "no template"
    if report["memory"]:
        yield from _room_lines(report["memory"])
    for file in report["files"]:
        yield "file", f"{file['name']}, {size_text(file['size'])}" + ("" if file["here"] else ", to fetch")


def _sizes(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "family", f"{report['family']}, {count_text(report['parameters'])} parameters"
    yield (
        "shape",
        f"{report['layers']} layers, hidden {report['hidden']}, {report['heads']} heads of "
        f"{report['head_dim']} ({report['kv_heads']} of keys and values), {report['vocabulary']:,} known tokens",
    )
    yield "weights", ", ".join(report["weights"]) or "not known"
    yield "context", f"{report['context']:,} tokens"


def count_text(count: int) -> str:
    """A large number as people say it: 76,160, 494 million, 7.62 billion."""
    for unit, word in ((10**9, "billion"), (10**6, "million")):
        if count >= unit:
            return f"{count / unit:.3g} {word}"
    return f"{count:,}"


def _room_lines(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from llmrs_cli.hub.files import size_text

    rows = f" for each of {memory['rows']} requests" if memory["rows"] > 1 else ""
    need = f"{size_text(memory['needed'])} for {memory['context']:,} tokens{rows}"
    yield "needs", f"{need}; {size_text(memory['free'])} are free ({memory['device']})"
    yield "fits", f"yes, up to {memory['largest_context']:,} tokens{rows}" if memory["fits"] else "no"
    if memory["advice"]:
        yield "advice", memory["advice"]
