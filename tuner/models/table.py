"""The table of well-known models (models.toml)."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from tuner.errors import MalformedCheckpoint, UnknownModel
from tuner.files import shipped_toml
from tuner.models.config_json import parse_model, read_model
from tuner.models.fields import is_path
from tuner.models.model import Model
from tuner.models.rows import read_rows
from tuner.problems.dtypes import Dtype
from tuner.shell import command_line

_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_PATHS = ("/", "./", "../", "~")
_CONFIG_IN_API = "; post its config.json; GET /v1/models lists the presets"
_CONFIG_ON_PAGES = ": the page Models lists the known ones, and the API takes a config.json"


@cache
def presets() -> tuple[Model, ...]:
    """Every model of the table, in its order."""
    return tuple(read_rows(shipped_toml("tuner.models", "models.toml")["model"]))


def find_model(target: str | bytes, name: str = "config.json") -> Model:
    """The preset of that name, or the model of a config.json: its bytes, its path or its folder's.

    Where a preset and a folder of one name exist, the preset is taken; ./NAME is the folder.
    `name` is that of a model of which the bytes are given. Raises UnknownModel and
    MalformedCheckpoint.
    """
    if isinstance(target, bytes):
        return parse_model(target, name)
    if "/" in target and is_path(target):
        return read_model(Path(target))
    try:
        return find_preset(target)
    except UnknownModel:
        if is_path(target):
            return read_model(Path(target))
        raise


def model_or_none(target: str | bytes) -> Model | None:
    """Like `find_model`; None for a text or a file that stands for no model."""
    try:
        return find_model(target)
    except (UnknownModel, MalformedCheckpoint):
        return None


def find_preset(text: str) -> Model:
    """The preset of that name or alias. Raises UnknownModel, which names a near one.

    Case, spaces, underscores, hyphens and an organisation before a slash do not matter. A path is
    no name: where nothing is there, a preset of its last part could be another model.
    """
    if text.startswith(_PATHS):
        raise UnknownModel(
            f"no preset is called {text[:200]!r}",
            cli=", and nothing is there: give the path of a config.json",
            api=_CONFIG_IN_API,
            page=_CONFIG_ON_PAGES,
        )
    if model := _by_key().get(_key(text)):
        return model
    near = _near(text)
    repository = text if _REPOSITORY.fullmatch(text) else "NAME"
    fetch = command_line("hf", "download", repository, "config.json")
    raise UnknownModel(
        f"no preset is called {text[:200]!r}{near}",
        cli="" if near else f"; give its config.json (`{fetch}`), or see `tuner models`",
        api="" if near else _CONFIG_IN_API,
        page="" if near else _CONFIG_ON_PAGES,
    )


def sibling(model: Model, dtype: Dtype) -> Model | None:
    """The preset of the same sizes whose checkpoint is quantised as this dtype; None: no such."""
    return next(
        (
            one
            for one in presets()
            if one.dtype is dtype
            and one.name != model.name
            and (one.block_shape or one.per_channel_quant)
            and (one.architecture, one.E, one.intermediate, one.hidden)
            == (model.architecture, model.E, model.intermediate, model.hidden)
            and one.name.startswith(model.name)
        ),
        None,
    )


def named_in(text: str) -> list[Model]:
    """The presets of a checkpoint's name or path, which may have more words behind theirs.

    Of glm-4.5 and glm-4.5-fp8 the longer one alone.
    """
    last = _key(text.rstrip("/").rpartition("/")[2])
    found = {key: model for key, model in _by_key().items() if last and last.startswith(key)}
    most = len(max(found, key=len, default=""))
    return [model for key, model in found.items() if len(key) == most]


def _near(text: str) -> str:
    """The nearest preset where only letters differ, or hardly anything: another number is another
    model.
    """
    names = [name for model in presets() for name in (model.name, *model.aliases)]
    (near, *_) = get_close_matches(text.casefold(), names, n=1, cutoff=0.75) or [""]
    numbers = re.findall(r"[0-9]+", text)
    close = re.findall(r"[0-9]+", near) == numbers or get_close_matches(text, [near], cutoff=0.95)
    if near and close:
        return f"; did you mean {near!r}?"
    # A preset with more words behind it, such as a dtype in which nobody has the model.
    begins = [name for name in names if text.casefold().startswith(f"{name}-")]
    return f"; did you mean {max(begins, key=len)!r}?" if begins else ""


@cache
def _by_key() -> dict[str, Model]:
    return {_key(name): model for model in presets() for name in (model.name, *model.aliases)}


def _key(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text.rpartition("/")[2]).casefold()
