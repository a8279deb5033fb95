"""The tuner's messages tell of its command line; here they tell of the API instead."""

from __future__ import annotations

_SAID = {
    "--problem SPEC or --model NAME": "problem=SPEC",
    "--allow-predicted": "allow_predicted=true",
    "--no-fuse-shared": "fuse_shared=false",
    "--hidden-size": "hidden_size",
    "--top-k": "top_k",
    "--dtype ": "dtype=",
    "run `tuner tune MODEL --device": "post a job for the device",
    "` first": " first",
    "`tuner devices` lists": "GET /v1/devices lists",
    "`tuner models` lists": "GET /v1/models lists",
}


def in_api_words(text: str) -> str:
    """A message with the options and commands that it names as a client of the API has them."""
    for ours, theirs in _SAID.items():
        text = text.replace(ours, theirs)
    return text
