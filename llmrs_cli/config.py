"""Directories, environment names and settings; nothing here downloads, prints or reads the working directory.

A setting comes from the first of: a flag, an environment variable, the user's `settings.toml`, the default.
Each value carries where it came from, so that `llmrs config` and `llmrs doctor` can say it. `VARIABLES` is
every environment name by which a user can change what we do; `kernels`, which may import nothing of ours, reads its own
(caches, Numba's) where it needs them.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Generic, TypeVar

from llmrs_cli.errors import UsageError

T = TypeVar("T")

SETTINGS_FILE = "settings.toml"
DEFAULT = "default"
"""Origin of a value that nobody set."""

VARIABLES: Mapping[str, str] = {
    "LLMRS_MODEL": "model to use where none is named",
    "LLMRS_DEVICE": "auto, cuda, cuda:N, cpu or reference",
    "LLMRS_CONTEXT": "context length in tokens",
    "LLMRS_CONFIG_DIR": "folder of settings.toml, instead of $XDG_CONFIG_HOME/llmrs",
    "LLMRS_CACHE_DIR": "folder of what can be made again, instead of $XDG_CACHE_HOME/llmrs",
    "LLMRS_STATE_DIR": "folder of history and sessions, instead of $XDG_STATE_HOME/llmrs",
    "LLMRS_API_KEY": "key of a server: what `llmrs serve` asks for and `llmrs bench serve` sends",
    "LLMRS_DEBUG": "1 prints the traceback of an error",
    "HF_HOME": "folder of the Hub's cache and token",
    "HF_HUB_CACHE": "folder of downloaded models, shared with other programs",
    "HF_HUB_OFFLINE": "1 never asks the network",
    "HF_ENDPOINT": "address of the Hub or of a mirror",
    "HF_TOKEN": "access token for gated and private models",
    "HF_TOKEN_PATH": "file that holds the token",
    "HTTP_PROXY": "proxy for http",
    "HTTPS_PROXY": "proxy for https",
    "NO_PROXY": "hosts that are reached without the proxy",
    "SSL_CERT_FILE": "certificates to trust, for a proxy or mirror with its own authority",
    "NO_COLOR": "any value switches colour off",
    "FORCE_COLOR": "any value but 0 switches colour on",
    "VISUAL": "editor of /edit, Ctrl-G and `llmrs config edit`",
    "EDITOR": "the same, where VISUAL is not set",
    "CUDA_VISIBLE_DEVICES": "GPUs that may be used",
    "NUMBA_NUM_THREADS": "threads of the CPU backend; by default the physical cores that it may use",
    "NUMBA_CPU_NAME": "processor that the CPU loops are compiled for, instead of this one",
    "NUMBA_CPU_FEATURES": "the same, its instruction sets",
    "XDG_CONFIG_HOME": "parent of the settings folder",
    "XDG_CACHE_HOME": "parent of the cache folder",
    "XDG_STATE_HOME": "parent of the state folder",
}
"""Every environment variable that we read, and what it means; `llmrs help environment` prints this table."""


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A value and where it came from: "default", "--device", "HF_HUB_OFFLINE" or the settings file."""

    value: T
    origin: str = DEFAULT


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user can set once for every command. Each field is a key of the settings file."""

    model: Setting[str | None] = field(default_factory=lambda: Setting(None))
    """Model to use where none is named; None: the built-in choice."""
    device: Setting[str] = field(default_factory=lambda: Setting("auto"))
    context: Setting[int | None] = field(default_factory=lambda: Setting(None))
    """Tokens of prompt and answer; None: what the model allows and memory holds."""
    offline: Setting[bool] = field(default_factory=lambda: Setting(False))
    color: Setting[str] = field(default_factory=lambda: Setting("auto"))
    """auto, always or never."""
    keys: Setting[str] = field(default_factory=lambda: Setting("emacs"))
    """emacs or vi: how lines are edited in a conversation."""


@dataclass(frozen=True, slots=True)
class Directories:
    """Where things lie. Nothing is created by naming it; `private_directory` does that on first use."""

    config: Path
    cache: Path
    """What can be made or fetched again: converted weights, kernels, the built-in model."""
    state: Path
    """History and sessions: private, and not to be lost."""
    hub: Path
    """The Hub's cache of models, shared with other programs."""
    token_file: Path


def directories(env: Mapping[str, str] | None = None) -> Directories:
    """The directories under `env` (default: the process's environment), by the XDG and Hub conventions."""
    env = os.environ if env is None else env
    cache_home = _xdg(env, "XDG_CACHE_HOME", ".cache")
    hub_home = _named(env, "HF_HOME") or cache_home / "huggingface"
    return Directories(
        config=_named(env, "LLMRS_CONFIG_DIR") or _xdg(env, "XDG_CONFIG_HOME", ".config") / "llmrs",
        cache=_named(env, "LLMRS_CACHE_DIR") or cache_home / "llmrs",
        state=_named(env, "LLMRS_STATE_DIR") or _xdg(env, "XDG_STATE_HOME", ".local/state") / "llmrs",
        hub=_named(env, "HF_HUB_CACHE") or hub_home / "hub",
        token_file=_named(env, "HF_TOKEN_PATH") or hub_home / "token",
    )


def _home(env: Mapping[str, str]) -> Path:
    home = Path(env.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111  # never raises, unlike Path.home
    if not home.is_absolute():
        raise UsageError("There is no home directory.", hint="Set HOME, or the three LLMRS_*_DIR variables.")
    return home


def _xdg(env: Mapping[str, str], name: str, fallback: str) -> Path:
    """The base directory `name`; the convention says that a relative path is to be ignored."""
    value = env.get(name, "")
    return Path(value) if Path(value).is_absolute() else _home(env) / fallback


def _named(env: Mapping[str, str], name: str) -> Path | None:
    """The folder or file that `name` gives, with ~ spelled out; None if the variable is unset or empty."""
    value = env.get(name, "")
    if not value:
        return None
    if value == "~" or value.startswith("~/"):
        return _home(env) / value[2:]
    return Path(value).absolute()


def private_directory(path: Path) -> Path:
    """Create `path` and its missing parents for the user alone (0700 from the first moment) and return it."""
    for folder in [*reversed(path.parents), path]:
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            if folder.is_dir():  # a read-only root above a folder that exists
                continue
            raise UsageError(
                f"Cannot create the folder {str(folder)!r}: {error.strerror}.",
                hint="Set LLMRS_CONFIG_DIR, LLMRS_CACHE_DIR or LLMRS_STATE_DIR to a folder of yours.",
            ) from error
    return path


def distrust(path: Path) -> str | None:
    """Why code or state must not be read from the folder `path`: a clause for a message, or None if it may."""
    status = path.stat()
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return "other users may write to it"
    return None


def load_settings(
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Settings under `flags` (field → value, None: not given), `env` and `folder`/settings.toml.

    Raises UsageError for an unknown key, naming the nearest one, or for a value of the wrong kind.
    """
    env = os.environ if env is None else env
    path = (folder or directories(env).config) / SETTINGS_FILE
    found: dict[str, Setting[object]] = {}
    for key, value in _read_file(path).items():
        found[key] = checked(key, value, str(path))
    for key, rule in _KEYS.items():
        if (given := rule.from_env(env)) is not None:
            found[key] = checked(key, given.value, given.origin)
    for key, value in (flags or {}).items():
        if value is not None:
            found[key] = checked(key, value, f"--{key}")
    return Settings(**found)  # type: ignore[arg-type]  # checked has seen to the types


def _read_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"Cannot read the settings file {str(path)!r}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"The settings file {str(path)!r} is not UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The settings file {str(path)!r} is not TOML: {error}.") from error


@dataclass(frozen=True, slots=True)
class _Key:
    """How one setting is checked and which variables give it."""

    rule: str
    """Completes "must be …"."""
    check: Callable[[object], bool]
    from_env: Callable[[Mapping[str, str]], Setting[object] | None]


def checked(key: str, value: object, origin: str) -> Setting[object]:
    """`value` as a setting that came from `origin`; UsageError for an unknown key or a wrong kind of value."""
    if key not in _KEYS:
        near = get_close_matches(key, list(_KEYS), n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"The keys are {', '.join(_KEYS)}."
        raise UsageError(f"There is no setting {key!r} ({origin}).", hint=hint)
    if not _KEYS[key].check(value):
        raise UsageError(f"The setting {key!r} must be {_KEYS[key].rule}, not {value!r:.60} ({origin}).")
    return Setting(value, origin)


def _variable(name: str) -> Callable[[Mapping[str, str]], Setting[object] | None]:
    """Reader of a variable taken as it is; an empty one counts as unset."""
    return lambda env: Setting(env[name], name) if env.get(name) else None


def _context_variable(env: Mapping[str, str]) -> Setting[object] | None:
    text = env.get("LLMRS_CONTEXT", "")
    value: object = int(text) if text.isascii() and text.isdigit() else text
    return Setting(value, "LLMRS_CONTEXT") if text else None


def _offline_variable(env: Mapping[str, str]) -> Setting[object] | None:
    text = env.get("HF_HUB_OFFLINE", "")
    return Setting(text.upper() in {"1", "ON", "YES", "TRUE"}, "HF_HUB_OFFLINE") if text else None


def _color_variables(env: Mapping[str, str]) -> Setting[object] | None:
    """NO_COLOR wins over FORCE_COLOR: who asks for no colour gets none."""
    if env.get("NO_COLOR"):
        return Setting("never", "NO_COLOR")
    if env.get("FORCE_COLOR", "0") not in {"", "0"}:
        return Setting("always", "FORCE_COLOR")
    return None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


_KEYS: Mapping[str, _Key] = {
    "model": _Key("the name of a model", _is_name, _variable("LLMRS_MODEL")),
    "device": _Key("the name of a device", _is_name, _variable("LLMRS_DEVICE")),
    "context": _Key("a positive number of tokens", lambda v: type(v) is int and v > 0, _context_variable),
    "offline": _Key("true or false", lambda v: isinstance(v, bool), _offline_variable),
    "color": _Key("auto, always or never", lambda v: v in ("auto", "always", "never"), _color_variables),
    "keys": _Key("emacs or vi", lambda v: v in ("emacs", "vi"), lambda env: None),
}
"""One rule for each field of `Settings`."""
