"""Serves a model over HTTP to any OpenAI client.

llmrs serve [MODEL] [--host HOST] [--port PORT] [--api-key-file FILE]
"""

from __future__ import annotations

import importlib.util
import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmrs_cli.cli.models import Chosen, choose
from llmrs_cli.cli.options import ModelOptions, model_options, quiet_option
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import UsageError
from llmrs_cli.extras import install

if TYPE_CHECKING:
    from llmrs_cli.server.settings import ServerSettings
    from llmrs_cli.text.generate import TextEngine

PACKAGES = ("starlette", "uvicorn", "orjson", "prometheus_client")
"""What the optional extra brings."""
KEY_VARIABLE = "LLMRS_API_KEY"
SHORTEST_KEY = 8
FEW_TOKENS = 64
"""Of the KV cache for each sequence that may run; with fewer, more sequences are of no use."""


@click.command("serve")
@model_options()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), metavar="N", help="Port."
)
@click.option(
    "--api-key-file", metavar="FILE", help="File of keys, one a line; any of them opens the server."
)
@click.option(
    "--insecure-no-auth", is_flag=True, help="Listen beyond this machine without a key: anybody may use it."
)
@click.option("--allowed-host", multiple=True, metavar="NAME", help="Further Host to answer to; repeatable.")
@click.option(
    "--cors-origin", multiple=True, metavar="ORIGIN", help="Web origin that may use it; repeatable."
)
@click.option(
    "--served-model-name", multiple=True, metavar="NAME", help="Name of the model in the API; repeatable."
)
@click.option(
    "--queue",
    default=256,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Sequences that may wait; keys share them evenly.",
)
@click.option(
    "--deadline",
    default=600.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="S",
    help="Seconds that a request may wait for its next token.",
)
@click.option(
    "--drain",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    metavar="S",
    help="Seconds that answers get to end at SIGTERM.",
)
@click.option(
    "--watchdog",
    default=60.0,
    show_default=True,
    type=click.FloatRange(1),
    metavar="S",
    help="Seconds without a step after which the engine counts as hung; ten times as many while it computes.",
)
@quiet_option
def command(
    model: ModelOptions,
    host: str,
    port: int,
    api_key_file: str | None,
    insecure_no_auth: bool,
    allowed_host: tuple[str, ...],
    cors_origin: tuple[str, ...],
    served_model_name: tuple[str, ...],
    queue: int,
    deadline: float,
    drain: float,
    watchdog: float,
    quiet: bool,
) -> int:
    """Serve a model over HTTP with OpenAI's API.

    It listens on this machine alone unless --host says otherwise; beyond it, a key is needed: from
    --api-key-file or the variable LLMRS_API_KEY. GET / is a page to chat with. Ctrl-C or SIGTERM lets
    answers under way end (--drain), a second one ends at once. stderr has a line of JSON per request, without
    prompts.

    An answer may take the rest of the context: it does unless max_tokens says less, and a larger max_tokens is
    lowered to it. max_completion_tokens wins over max_tokens. What a request leaves open is as the model's
    generation_config.json has it, and what it says holds, 0 and 1.0 too. The parts of a message are joined with
    nothing between them. The answers of one request share four contexts and 262,144 log-probabilities.
    SECURITY.md lists all limits; /openapi.json describes every field.

    \b
      llmrs serve qwen2.5-3b
      llmrs serve smollm2-135m --port 8080
      curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
           -d '{"messages": [{"role": "user", "content": "Hi"}]}'
    """
    _require_extra()
    from llmrs_cli.server.lobby import lobby
    from llmrs_cli.server.run import listen
    from llmrs_cli.server.settings import ServerSettings, is_loopback

    keys = _keys(api_key_file)
    if not (keys or is_loopback(host) or insecure_no_auth):
        raise UsageError(
            f"Listening on {host} without a key would let anybody in.",
            hint="Give --api-key-file or LLMRS_API_KEY, or --insecure-no-auth if that is meant.",
        )
    terminal = Terminal.standard(quiet=quiet)
    settings = ServerSettings(
        names=served_model_name,
        host=host,
        keys=keys,
        allowed_hosts=allowed_host,
        origins=cors_origin,
        queue=queue,
        deadline=deadline,
        drain=drain,
        watchdog=watchdog,
    )
    with listen(host, port) as listener:
        with lobby(listener, settings, quiet=quiet):
            chosen = choose(model, terminal)
        settings = replace(settings, names=served_model_name or served_names(chosen))
        return _serve(listener, settings, chosen, model.rows, terminal)


def _serve(
    listener: socket.socket, settings: ServerSettings, chosen: Chosen, rows: int | None, terminal: Terminal
) -> int:
    from llmrs_cli.server.run import Load, Tell, serve

    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    with ExitStack() as loading:
        bar = loading.enter_context(terminal.working(f"Loading {chosen.name.text}"))

        def ready(engine: TextEngine, tokens: int) -> None:
            loading.close()
            for note in engine.notes:
                terminal.notice(note)
            terminal.notice(
                f"{chosen.name.text} on {chosen.device}: context {engine.context}, {engine.rows} at once"
                f" in a KV cache of {tokens} tokens, {engine.defaults}."
            )
            if rows is not None and tokens < rows * FEW_TOKENS:
                terminal.notice(
                    "So many hardly find room in it: most will wait, or make way for others and be computed again."
                    " With --gpu-memory, or with --ctx too, it takes what memory there is."
                )
            terminal.notice(f"Serving on {address}; Ctrl-C ends.")

        def draining(seconds: float) -> None:
            terminal.notice(f"Answers under way get {seconds:g} s to end; a second signal ends at once.")

        load = Load(
            chosen.path,
            chosen.device,
            chosen.context,
            rows,
            chosen.memory,
            chosen.deterministic,
            chosen.small_head,
        )
        return serve(listener, settings, load, Tell(bar.update, ready, draining), quiet=terminal.quiet)


def _require_extra() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            "The server needs packages that are not installed.",
            hint=f"Install them: {install('serve')}.",
        )


def served_names(chosen: Chosen) -> tuple[str, ...]:
    """What clients may call the model: its name here and its repository; of a path only the last part."""
    name = chosen.name
    if name.path is not None:
        return (name.path.absolute().name,)
    alias = name.alias
    repo = name.repo if name.repo is not None else getattr(alias, "repo", None)
    return tuple(dict.fromkeys(text for text in (name.text, repo) if text))


def _keys(file: str | None) -> tuple[bytes, ...]:
    """The keys that open the server; none if none are set up."""
    text = os.environ.get(KEY_VARIABLE, "")
    if file is not None:
        try:
            text = Path(file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"Cannot read the key file {file!r}: {reason}.") from error
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if file is not None and not keys:
        raise UsageError(f"The key file {file!r} holds no key.", hint="Write one into it, one a line.")
    if any(len(key) < SHORTEST_KEY or not key.isascii() or " " in key for key in keys):
        raise UsageError(
            f"A key must have at least {SHORTEST_KEY} characters, ASCII and without blanks.",
            hint="`openssl rand -hex 16` makes a good one.",
        )
    return tuple(key.encode() for key in keys)
