"""A model's folder without weights: its config.json with fewer layers, and a made-up tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuner.errors import MalformedCheckpoint
from tuner.models.fields import language_fields, parse
from tuner.models.folder import read_with
from tuner.models.layer_counts import LAYERS, PATTERN, layer_total

_REMOTE_CODE = "auto_map"  # names Python files of the model's folder
_QUANTISATION = "quantization_config"  # its lists are of names, not one for each layer


def write_dummy_model(config: Path, layers: int | None, folder: Path) -> None:
    """Write a folder from which an engine serves with dummy weights, and downloads nothing.

    `config` is a config.json or its folder. Raises MalformedCheckpoint.
    """
    files = read_with(config, lambda data, _: _files(data, layers))
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")


def _files(data: bytes, layers: int | None) -> dict[str, Any]:
    config = {name: value for name, value in parse(data).items() if name != _REMOTE_CODE}
    language = language_fields(config)
    vocabulary = language.get("vocab_size")
    if not isinstance(vocabulary, int) or vocabulary < 3:
        raise MalformedCheckpoint("no vocab_size: give a model's own config.json")
    if layers is not None:
        total = layer_total(language)
        if not 1 <= layers <= total:
            raise MalformedCheckpoint(f"--layers {layers}: the model has {total} layers")
        config = _cut(config, total, layers)
    return {"config.json": config, **_tokenizer(vocabulary)}


def _cut(fields: dict[str, Any], total: int, layers: int) -> dict[str, Any]:
    """The fields for the first layers alone, with each list that has an item for each layer."""
    found = dict(fields)
    for name, value in fields.items():
        if isinstance(value, dict) and name != _QUANTISATION:
            found[name] = _cut(value, total, layers)
        elif (isinstance(value, list) and len(value) == total) or name == PATTERN:
            found[name] = value[:layers]
        elif name in LAYERS and value == total:
            found[name] = layers
    return found


def _tokenizer(vocabulary: int) -> dict[str, Any]:
    """The files of a tokenizer in which token 17 is the word t17.

    Format: that of the tokenizers package, as transformers' PreTrainedTokenizerFast reads it.
    """
    words = {f"t{number}": number for number in range(vocabulary)}
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "t0",
            "bos_token": "t1",
            "eos_token": "t2",
            "pad_token": "t2",
        },
    }
