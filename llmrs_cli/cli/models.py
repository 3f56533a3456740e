"""From the options that name a model to an engine that runs it: settings, default model, download, load.

Every command comes this way. What is chosen without being asked is announced on stderr.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmrs_cli.cli.options import ModelOptions, over
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.config import Settings, directories, distrust, load_settings, private_directory
from llmrs_cli.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from llmrs_cli.hub.names import ModelName
    from llmrs_cli.text.generate import TextEngine


MOST_SHARE = 0.97
CONVERTED = "converted"
"""Folder of our cache for what `llmrs convert` makes."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model on this machine and the device that will run it."""

    name: ModelName
    path: Path
    device: str
    """cuda:N, cpu or reference; never auto."""
    context: int | None
    """As asked for, in tokens."""
    commit: str | None = None
    """Of the repository that the model came from."""
    memory: int | None = None
    """Bytes for weights, workspace and KV cache; None: most of what is free."""
    deterministic: bool = False
    small_head: bool = False
    """The head in 8 bits."""

    def __str__(self) -> str:
        """For people: name, pinned commit and device."""
        return f"{self.name.text}{f' at commit {self.commit[:12]}' if self.commit else ''} on {self.device}"


def choose(options: ModelOptions, terminal: Terminal, *, runs: bool = True) -> Chosen:
    """Settle device and model and bring the model here. Raises what `hub` raises.

    `runs`: it is to run, so that one that does not fit is not fetched.
    """
    from llmrs_cli.cli.fetching import Fetching
    from llmrs_cli.hub.access import HubAccess
    from llmrs_cli.hub.fit import fit_check
    from llmrs_cli.hub.store import locate

    settings = load_settings(
        {
            "model": options.model,
            "device": options.device,
            "context": options.ctx,
            "offline": options.offline or None,
        }
    )
    device = choose_device(settings.device.value, terminal)
    free = free_bytes(device)
    name = choose_name(settings, options.revision, device, free, terminal)
    access = HubAccess.from_environment(offline=settings.offline.value)
    check = fit_check(name.text, free=free, context=settings.context.value)
    found = locate(name, access, Fetching(terminal), check if runs else None)
    path = _converted(found.path, name, terminal) if runs else found.path
    return Chosen(
        name,
        path,
        device,
        settings.context.value,
        found.commit,
        asked_memory(options, free),
        options.deterministic,
        options.quantize_head,
    )


def asked_memory(options: ModelOptions, free: int) -> int | None:
    """Bytes that were asked for; a share is one of the `free` ones, of which a device needs some for itself."""
    asked = options.gpu_memory
    return int(min(asked, MOST_SHARE) * free) if isinstance(asked, float) else asked


def _converted(path: Path, name: ModelName, terminal: Terminal) -> Path:
    """The copy that `llmrs convert` made of the model at `path`, else `path`."""
    place = converted_place(path)
    if place is None or not place.exists():
        return path
    if (why := distrust(place.parent)) is not None:
        terminal.warn(f"The converted copy of {name.text} is not used: {why}.")
        return path
    terminal.notice(f"Using the converted copy of {name.text}.")
    return place


def converted_place(path: Path, *, make: bool = False) -> Path | None:
    """Where the converted copy of the model at `path` is or would be; None if there is none of any model.

    `make`: the folder above it exists from now on. Raises ModelError for a model that cannot be opened.
    """
    from llmrs_cli.engine.weights.checkpoint import open_checkpoint
    from llmrs_cli.engine.weights.convert import key_of

    home = directories().cache / CONVERTED
    if make:
        private_directory(home)
    elif not home.is_dir():
        return None
    return home / key_of(open_checkpoint(path))


def open_engine(chosen: Chosen, terminal: Terminal, *, rows: int | None) -> TextEngine:
    """Load the model; the caller closes the engine."""
    from llmrs_cli.engine.backends.registry import notice_of
    from llmrs_cli.text.generate import TextEngine

    with terminal.working(f"Loading {chosen.name.text}") as bar:
        engine = TextEngine.open(
            chosen.path,
            device=chosen.device,
            context=chosen.context,
            rows=rows,
            memory=chosen.memory,
            deterministic=chosen.deterministic,
            small_head=chosen.small_head,
            progress=bar.update,
        )
    for note in (notice_of(chosen.device), *engine.notes):
        if note is not None:
            terminal.notice(note)
    return engine


def drawing_note(engine: TextEngine, given: Mapping[str, Any]) -> str | None:
    """How tokens are drawn, where the model's own files have a say in it; `given` is what the user said."""
    drawn = over(engine.defaults, given)
    return f"Drawn with {drawn}." if drawn.from_model else None


def check_ids(engine: TextEngine, given: Mapping[str, Any]) -> None:
    """Raise UsageError, which names the flag, for token ids among what the user gave that the model does not have."""
    biased = [token for token, _ in given.get("logit_bias", ())]
    for flag, ids in (("--stop-token-id", given.get("stop_token_ids", ())), ("--logit-bias", biased)):
        for token in ids:
            if token >= engine.vocab:
                raise UsageError(
                    f"{flag}: the model has token ids from 0 to {engine.vocab - 1}, not {token}."
                )


def choose_device(device: str, terminal: Terminal) -> str:
    """`device`, with auto settled; a GPU that could be used with more packages is mentioned.

    Raises UsageError for a device that was asked for and cannot be used here, before anybody looks at its memory.
    """
    from llmrs_cli.engine.backends.registry import available, parse_device, probe

    if device != "auto":
        info = probe(*parse_device(device))
        if info.reason is not None:
            raise UsageError(f"The device {device!r} cannot be used: {info.reason}", hint=info.hint)
        return device
    backends = available()
    for info in backends:
        if info.usable:
            return info.name
        if info.hint is not None:
            terminal.notice(
                f"{info.reason[:1].upper()}{info.reason[1:]} {info.hint}" if info.reason else info.hint
            )
    return "reference"


def free_bytes(device: str) -> int:
    """Memory that a model could take on `device`."""
    from llmrs_cli.engine.backends.host_memory import available_bytes
    from llmrs_cli.engine.backends.registry import parse_device

    kind, index = parse_device(device)
    if kind != "cuda":
        return available_bytes()
    import cupy

    with cupy.cuda.Device(index):
        return int(cupy.cuda.runtime.memGetInfo()[0])


def choose_name(
    settings: Settings, revision: str | None, device: str, free: int, terminal: Terminal
) -> ModelName:
    """The model that is named, else the default of the device; `revision` pins a repository."""
    from llmrs_cli.hub.fit import default_model

    text = settings.model.value
    if text is None:
        text = default_model(free if device.startswith("cuda") else None)
        terminal.warn(f"No model is named: using {text} on {device}.")
    return model_named(text, revision)


def model_named(text: str, revision: str | None = None) -> ModelName:
    """What a MODEL argument means, the user's own names included; `revision` pins a repository."""
    from llmrs_cli.hub.names import parse_model, pinned
    from llmrs_cli.hub.own_names import read_names

    return pinned(parse_model(text, read_names(directories().config)), revision)
