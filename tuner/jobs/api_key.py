"""Where the command line finds the key of a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import platformdirs

from tuner.errors import BadInput

KEY_VARIABLE = "TUNER_API_KEY"


def api_key(environ: Mapping[str, str]) -> str | None:
    """TUNER_API_KEY, or the content of TUNER_API_KEY_FILE or of the user's `api-key` file.

    Raises BadInput where both variables are set, for a file that cannot be read, or that other
    users may read, and for a text that cannot be a key.
    """
    key, given = environ.get(KEY_VARIABLE), environ.get(f"{KEY_VARIABLE}_FILE")
    if key and given:
        raise BadInput(f"{KEY_VARIABLE} and {KEY_VARIABLE}_FILE are both set: unset one of them")
    if key:
        return _checked_key(key, KEY_VARIABLE)
    path = key_path(environ)
    if not given and not path.exists():
        return None
    try:
        if path.stat().st_mode & 0o077:
            raise BadInput(f"others may read the key in {path}: run `chmod 600 {path}`")
        return _checked_key(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the key in {path}: {error}") from None


def key_path(environ: Mapping[str, str]) -> Path:
    """The file in which the command line looks for its key."""
    given = environ.get(f"{KEY_VARIABLE}_FILE")
    return (
        Path(given)
        if given
        else platformdirs.user_config_path("tuner", appauthor=False) / "api-key"
    )


def _checked_key(text: str, where: str) -> str:
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"{where} holds no key: a key is one word, as `tuner keys add` prints it")
    return key
