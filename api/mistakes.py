"""The mistakes in a request: the place of each, and the sentence about it.

Pydantic's own words are for programmers. Pages say the same for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from api.text import IN_WORDS, MALFORMED, REFUSED
from tuner.errors import BadInput, TunerError, did_you_mean
from tuner.problems.fields import UNKNOWN_FIELD

_MOST = 20  # mistakes that are named
# What pages say of a value, by Pydantic's type of the error.
_ON_PAGES = {
    "missing": "fill this in",
    "string_too_short": "fill this in",
    "string_too_long": "should have at most {max_length} letters",
    "too_short": "name at least {min_length}",
    "too_long": "name at most {max_length}",
    "greater_than": "should be more than {gt}",
    "greater_than_equal": "should be at least {ge}",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be at most {le}",
    "enum": "should be {expected}",
    "literal_error": "should be {expected}",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "bool_parsing": "should be true or false",
}


class Mistake(BaseModel):
    """One thing wrong with a request."""

    pointer: str = Field(
        description="Where: a JSON pointer into the body (RFC 6901), or a parameter's name.",
        examples=["/tp", "limit"],
    )
    detail: str

    def line(self) -> str:
        """The mistake with its place."""
        return f"{self.pointer.lstrip('/')}: {self.detail}".removeprefix(": ")


def mistakes_of(
    errors: Sequence[Mapping[str, Any]], body: object = None, *, on_page: bool = False
) -> list[Mistake]:
    """Return the mistakes that Pydantic found, each once."""
    found = [_mistake(one, body, on_page) for one in errors[:_MOST]]
    return [one for at, one in enumerate(found) if one not in found[:at]]


def mistakes_by_field(error: BadInput, *, on_page: bool = False) -> list[Mistake]:
    """Return the mistake of each field that an error names."""
    return [
        Mistake(pointer=f"/{name}", detail=said_of(one, on_page=on_page))
        for name, one in error.by_field.items()
    ]


def said_of(error: TunerError, *, on_page: bool) -> str:
    """The error in the words of pages, or of the API."""
    return error.in_page_words() if on_page else error.in_api_words()


def refused_as(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the one class of BadInput that all errors have; None if they have no such class."""
    kinds = {str(one["type"]) for one in errors}
    if not all(kind.startswith((REFUSED, MALFORMED)) for kind in kinds):
        return None
    classes = {kind.partition(":")[2] for kind in kinds}
    return classes.pop() if len(classes) == 1 else BadInput.__name__


def _mistake(error: Mapping[str, Any], body: object, on_page: bool) -> Mistake:
    source, *place = error["loc"]
    kind = error["type"]
    text = _on_page(error) if on_page else str(error["msg"]).removeprefix("Value error, ")
    if kind in ("enum", "literal_error") and isinstance(error["input"], str):
        choices = re.findall(r"'([^']*)'", str(error["ctx"]["expected"]))
        text += did_you_mean(error["input"][:100], choices)
    elif kind == "string_pattern_mismatch":
        text = IN_WORDS.get(error["ctx"]["pattern"], text)
    elif kind == UNKNOWN_FIELD:
        place.append(error["ctx"]["name"])
    if source != "body":
        return Mistake(pointer=str(place[0]), detail=text)
    if not place:
        text = "send a JSON object" if body is None else f"send a JSON object, not {_kind(body)}"
    return Mistake(pointer=_pointer(place, body, kind == "missing"), detail=text)


def _on_page(error: Mapping[str, Any]) -> str:
    context = error.get("ctx", {})
    if error["type"].startswith((REFUSED, MALFORMED)):
        return str(context["on_page"])
    words = _ON_PAGES.get(error["type"])
    if words is None:
        return str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return words.format(**context)


def _kind(body: object) -> str:
    kinds = {list: "a list", str: "a string", bool: "true or false", int: "a number"}
    return kinds.get(type(body), "a number")


def _pointer(place: Sequence[str | int], body: object, missing: bool) -> str:
    """The JSON pointer of a Pydantic location, without the names of a union's members."""
    pointer, here = "", body
    for part in place:
        match here, part:
            case dict(), str() if part in here:
                here = here[part]
            case list(), int() if part < len(here):
                here = here[part]
            case (dict(), str()) | (list(), int()) if missing and part == place[-1]:
                pass
            case _:
                continue
        pointer += "/" + str(part).replace("~", "~0").replace("/", "~1")
    return pointer
