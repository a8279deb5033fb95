"""Read a server's settings: for its engine's rules, and for jobs and winners.

Also read from its flags which files it will ask for, and which variables point it at them. Each
engine's package has a module `launch` with such a `read_flags`. It also names the first release
that reads the variable of a config folder: `CONFIG_FOLDER_SINCE`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.engines.dispatch_table import ARCHITECTURE, CHECKPOINT, dispatch_table
from tuner.engines.engine import Engine, config_folders, engine_package, parse_spec
from tuner.errors import BadInput, BadProblem
from tuner.models.model import Model
from tuner.models.table import model_or_none
from tuner.problems.dtypes import Dtype
from tuner.problems.points import UNKNOWN_SERVER, Problem, ServerSettings

_FLAG = re.compile(r"--?[A-Za-z]")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")


def server_settings(text: str) -> dict[str, str]:
    """Read the flags of a command line, and the variables before it: `NAME=value --flag value`.

    Raises BadInput for quotation marks that are not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"cannot read the server's flags {text!r}: {error}") from None
    variables = (word.partition("=") for word in words if _VARIABLE.match(word))
    return {**{name: value for name, _, value in variables}, **flags_of(words)}


def flags_of(words: Sequence[str]) -> dict[str, str]:
    """Read the flags of a command line: `--flag value`, `--flag=value` and `--flag`, which is "1".

    Short flags, as `-tp`, are flags too. vLLM takes `_` for `-`. The last occurrence counts.
    """
    found: dict[str, str] = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if _FLAG.match(name):
            alone = not following or bool(_FLAG.match(following))
            found[name.replace("_", "-")] = value if equals else ("1" if alone else following)
    return found


def of_class(flags: Mapping[str, str], architecture: str) -> dict[str, str]:
    """Add the model's class to a server's settings; "": not known."""
    return {**flags, ARCHITECTURE: architecture} if architecture else dict(flags)


def of_model(flags: Mapping[str, str], target: str | bytes | Model) -> dict[str, str]:
    """Add a model's class and checkpoint to settings; `find_model` finds the model by a name."""
    model = target if isinstance(target, Model) else model_or_none(target)
    if model is None:
        return dict(flags)
    stored = model.stored_as
    return of_class({**flags, CHECKPOINT: stored} if stored else flags, model.architecture)


def class_alone(flags: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a server of the same model without flags and variables."""
    return {name: flags[name] for name in (ARCHITECTURE, CHECKPOINT) if name in flags}


def only_for(problem: Problem, engine: str, flags: Mapping[str, str]) -> dict[str, str]:
    """Replace flags for several problems by the flags that choose for this problem alone."""
    table = dispatch_table(engine)
    alone = table.alone.get(problem.family, {}) if table else {}
    return {alone.get(name, name): value for name, value in flags.items()}


def options_text(flags: Mapping[str, str]) -> str:
    """Write flags and variables as people type them."""
    words = []
    for name, value in flags.items():
        if not name.startswith("--"):
            words.append(f"{name}={value}")
        else:
            words.append(f"{name} {value}" if value else f"{name} left out")
    return " and ".join(words)


def settings_to_keep(engine: str, problem: Problem, settings: Mapping[str, str]) -> ServerSettings:
    """Keep the settings that the engine's rules ask for. Others may hold secrets.

    Flags that name the engine's default are left out too.
    """
    if (table := dispatch_table(engine)) is None:
        return UNKNOWN_SERVER
    given, usual = table.with_new_names(settings), table.defaults
    asked = sorted(table.names_for(problem) & given.keys())
    kept = {name: given[name] for name in asked if usual.get(name) != given[name]}
    architecture, checkpoint = kept.pop(ARCHITECTURE, ""), kept.pop(CHECKPOINT, "")
    return ServerSettings(architecture, checkpoint, shlex.join(_words(kept)))


def flags_to_keep(engine: str, server_args: str) -> str:
    """Keep the flags that change problems, or that an engine's rules ask for.

    Others may hold secrets. `engine` is its name or its name and version. Raises BadInput.
    """
    name, _ = parse_spec(engine)
    table, kept = dispatch_table(name), server_settings(server_args)
    asked = table.names if table else frozenset()
    kept = table.with_new_names(kept) if table else kept
    said = read_flags(name, kept)
    for flag in sorted(kept.keys() - asked):
        others = {one: value for one, value in kept.items() if one != flag}
        if read_flags(name, others) == said:
            kept = others
    return shlex.join(_words(kept))


def _words(flags: Mapping[str, str]) -> Iterator[str]:
    """Yield the words of a command line: variables, then flags."""
    for name, value in sorted(flags.items(), key=lambda one: one[0].startswith("-")):
        if name.startswith("-") and value and not value.startswith("-"):
            yield from (name, value)
        else:
            yield f"{name}={value}"


def settings_kept(server: ServerSettings) -> dict[str, str]:
    """Return the settings as `what_runs` takes them. Raises BadInput for flags without an end."""
    named = {ARCHITECTURE: server.architecture, CHECKPOINT: server.checkpoint}
    known = {name: text for name, text in named.items() if text}
    return {**known, **server_settings(server.server_args)}


def flags_alone(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the flags and variables among a server's settings."""
    model = class_alone(settings)
    return {name: value for name, value in settings.items() if name not in model}


def with_flags(server: ServerSettings) -> str:
    """Say with which flags a server is started: " with --quantization w8a8_int8", or ""."""
    flags = server_settings(server.server_args)
    return f" with {options_text(flags)}" if flags else ""


@dataclass(frozen=True)
class ServingFlags:
    """The changes that flags make to a model's problems, with the fields of
    `models.serving.Serving`.
    """

    dtype: Dtype | None = None  # None: the checkpoint's own
    options: Mapping[str, Any] = field(default_factory=dict)
    tp: int = 0  # 0: not said
    spreads: bool = False  # the experts are divided among all ranks
    unread: str = ""  # a sentence on a flag that changes problems and is not read
    converts: str = ""  # the word of --quantization for a type that is not read

    def on(self, tp: int) -> dict[str, Any]:
        """Return the values of families' options if `tp` ranks serve."""
        return {**self.options, "ep": tp} if self.spreads else dict(self.options)


def number_of(flags: Mapping[str, str], names: Sequence[str]) -> int:
    """Return the whole number of the flag that has one of these names; 0 if none is given.

    Raises BadProblem for a value that is no number.
    """
    for name in names:
        text = flags.get(name, "0")
        if not text.isascii() or not text.isdecimal() or len(text) > 9:
            raise BadProblem(f"{name} needs a whole number, not {text!r}")
        if int(text):
            return int(text)
    return 0


def other_sizes(flag: str) -> str:
    """Return a sentence on a flag that gives ranks sizes which are not read; "" for no flag."""
    if not flag:
        return ""
    return (
        f"with {flag} a rank has sizes that are not read here: leave the flag out, and instead of "
        "the model name the rank's own problem, fused_moe:E=.., or a line of the server's log that "
        "names a missing file"
    )


def read_flags(engine: str, flags: Mapping[str, str]) -> ServingFlags:
    """Read the flags of an engine's server; `flags_of` reads a command line.

    Raises BadProblem for a flag that needs a number and has none.
    """
    found: ServingFlags = _module(engine).read_flags(flags) if flags else ServingFlags()
    return found


def with_experts(engine: str, flags: Mapping[str, str], ep: int) -> dict[str, str]:
    """Add the flag by which a server divides its experts among ranks."""
    own: Mapping[str, str] = _module(engine).experts_flags(ep) if ep > 1 else {}
    return {**own, **flags}


def config_folder_since(engine: str) -> str:
    """Return the first release whose servers read a config folder's variable; "": unknown.

    An engine on disk knows it better: see `Delivery.variable`.
    """
    found: str = _module(engine).CONFIG_FOLDER_SINCE
    return found


def unfusing_flag(engine: str) -> str:
    """Return the flag that keeps shared experts apart from the routed experts; "" if
    none exists.
    """
    found: str = _module(engine).UNFUSING_FLAG
    return found


def unknown_flags(engine: Engine, words: Sequence[str]) -> list[str]:
    """List the flags that the engine on disk does not know, each with the nearest known flag."""
    found: list[str] = _module(engine.name).unknown_flags(engine, words)
    return found


def _module(engine: str) -> ModuleType:
    return import_module(f"{engine_package(engine)}.launch")


def config_variables(engine: str, root: Path) -> tuple[str, ...]:
    """Return the names of the variables to set to `root`, for the files in the folder.

    A variable whose files are missing is left out, because sglang stops at a folder without
    `configs/`.
    """
    return tuple(name for name, glob in config_folders(engine).items() if any(root.glob(glob)))


def all_config_variables(engine: str) -> tuple[str, ...]:
    """Return the names of all variables that can point an engine's servers at files."""
    return tuple(config_folders(engine))
