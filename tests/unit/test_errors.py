"""The error tree: what its module draws is what its module defines."""

import re

from tuner import errors
from tuner.errors import TunerError


def drawn() -> list[tuple[int, str]]:
    """(depth, name) of every class in the drawing, from the top."""
    found = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?:  |$)", line)
        if match:
            found.append((len(match[1]) // 4, match[2]))
    return found


def defined(cls: type[TunerError], depth: int = 0) -> list[tuple[int, str]]:
    """The same of the classes, in the order in which the module defines them."""
    below = [c for c in cls.__subclasses__() if c.__module__ == errors.__name__]
    return [(depth, cls.__name__), *(pair for c in below for pair in defined(c, depth + 1))]


def test_the_drawn_tree_is_the_tree_of_classes():
    assert len(drawn()) > 30
    assert drawn() == defined(TunerError)
