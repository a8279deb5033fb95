"""The files of a picture: SVG always, PNG where Pillow is installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from tuner.draw.shapes import Drawing
from tuner.draw.svg import svg_text

NO_PNG = "no PNG: Pillow is missing (the extra `pictures`)"


def can_write_png() -> bool:
    """Whether Pillow, which engines install too, is there."""
    return find_spec("PIL") is not None


def picture_files(name: str, drawing: Drawing, *, png: bool = True) -> dict[str, bytes]:
    """NAME.svg and NAME.png with their contents; without `png` and without Pillow no PNG."""
    files = {f"{name}.svg": svg_text(drawing).encode()}
    if png and can_write_png():
        files[f"{name}.png"] = import_module("tuner.draw.png").png_bytes(drawing)
    return files
