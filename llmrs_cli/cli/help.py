"""`llmrs help TOPIC`: what belongs to no single command.

llmrs help [TOPIC]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import click

from llmrs_cli.cli import complete
from llmrs_cli.cli.terminal import Terminal
from llmrs_cli.errors import UsageError, quoted

FORMATS = """\
Input of `llmrs batch` (--format). JSON lines, told apart by their keys:

  {"prompt": "Capital of Peru?"}                     a user message ("system" may stand beside it)
  {"messages": [{"role": "user", "content": "Hi"}]}  a conversation
  {"prompt_token_ids": [1, 2, 3]}                    token ids, taken as they are
  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
                                                     a request of OpenAI's batch API

Beside them may stand "id" or "custom_id" and the options temperature, top_p, top_k, min_p,
repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed, max_tokens, min_tokens,
stop, stop_token_ids, ignore_eos, n, logprobs, top_logprobs, chat_template_kwargs, response_format and
structured_outputs. Other keys are copied to the output; one that resembles an option is an error. An id
that was used before is one too.

response_format is OpenAI's ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": ...,
"schema": ...}}), and besides {"type": "regex", "regex": "yes|no"} and {"type": "grammar", "grammar": ...}
in Lark's notation. structured_outputs is vLLM's: {"choice": ["yes", "no"]}, or json, json_object, regex,
grammar. --schema FILE and --json-mode are for rows that name no form of their own. A form that cannot be
kept to the letter is refused; an answer that is cut at max_tokens is given as it is.

  text       one prompt a line; its line number is its id. For .txt and for anything whose name does
             not say and that begins with neither { nor [.
  csv, tsv   a header line, then records. --prompt-template 'Classify: {text}' makes the prompt of the
             columns (without it, the column "prompt" is the prompt); {{ and }} are braces. All columns
             are copied, none is an option; "id" or --id-field NAME is the id. CSV cells may be quoted
             and hold lines; TSV has no quoting. A template also works on JSON lines.

gzip and zstd are known by their first bytes; an output is compressed if its name ends in .gz or .zst.
(zstd needs the package backports.zstd.) A line holds at most 16 MiB. stdin and named pipes can be read
only once, so --dry-run needs a file, and a resume begins without a look at the rows.

Output (--output-format): one line a row, in input order, or with --order done as rows finish.

  flat       {"index": 0, "id": 7, "text": "...", "finish_reason": "stop", "usage": {...}, "error": null}
             with "texts" and "finish_reasons" where n > 1, "token_ids" with --return-token-ids, and
             "json", the value of an answer that is held to JSON (null if it was cut).
             A row that failed has "text": null and "error": {"code", "message", "param", "line"}.
  openai     as OpenAI's batch API answers, with the error at the top level as well
  text       the answer alone; \\n, \\r, \\t and \\\\ stand for what would break the line. A row that
             failed is an empty line.
  auto       openai for OpenAI's requests, else flat

Beside -o OUT stand, while it runs, OUT.journal (every finished row; --resume needs it, and it is removed at
the end) and OUT.lock, and then OUT.manifest.json: model, settings, seed, counts and tokens."""

SETTINGS = """\
A setting comes from the first of: a flag, an environment variable, the settings file, the default.
Nothing is ever read from the working directory.

  key       flag        variable              in settings.toml
  model     -m, MODEL   LLMRS_MODEL           model = "qwen2.5-3b"
  device    --device    LLMRS_DEVICE          device = "cpu"
  context   --ctx       LLMRS_CONTEXT         context = 8192
  offline   --offline   HF_HUB_OFFLINE        offline = true
  color                 NO_COLOR, FORCE_COLOR color = "never"
  keys      --vi                              keys = "vi"

'llmrs config list' shows their values and where each comes from, 'llmrs config edit' opens the file.
Any flag of a command has a variable as well, LLMRS_<COMMAND>_<FLAG>; it counts as that flag."""


def _rows(entries: Iterable[tuple[str, str]]) -> str:
    pairs = list(entries)
    width = max(len(name) for name, _ in pairs) + 2
    return "\n".join(f"  {name:<{width}}{meaning}" for name, meaning in pairs)


def _exit_codes() -> str:
    from llmrs_cli.cli.manpage import EXIT_MEANINGS

    return _rows((str(int(code)), meaning) for code, meaning in EXIT_MEANINGS.items())


def _environment() -> str:
    from llmrs_cli.config import VARIABLES

    own: Mapping[str, str] = {
        "LLMRS_<COMMAND>_<FLAG>": "any flag of a command, such as LLMRS_CHAT_TEMPERATURE"
    }
    return _rows([*VARIABLES.items(), *own.items()])


TOPICS: Mapping[str, Callable[[], str]] = {
    "exit-codes": _exit_codes,
    "environment": _environment,
    "settings": lambda: SETTINGS,
    "formats": lambda: FORMATS,
}


@click.command("help")
@click.argument("topic", metavar="[TOPIC]", required=False, shell_complete=complete.one_of(*TOPICS))
@click.pass_context
def command(ctx: click.Context, topic: str | None) -> None:
    """Explain exit-codes, environment, settings or formats.

    \b
      llmrs help exit-codes      what each exit status means
      llmrs help environment     variables that are read
      llmrs help settings        where a setting comes from
      llmrs help formats         rows of llmrs batch
    """
    terminal = Terminal.standard()
    if topic is None:
        terminal.data(ctx.find_root().get_help())
    elif topic in TOPICS:
        terminal.data(TOPICS[topic]())
    else:
        raise UsageError(f"There is no topic {quoted(topic)}.", hint=f"The topics are {', '.join(TOPICS)}.")
