"""Lay out plain text for terminals and pipes."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from itertools import zip_longest

GAP = "  "
_NARROWEST = 8  # columns of text are folded no further
_WORD = 40  # words up to this length are broken only if nothing else helps
# A long word is broken after one of these, if it can be.
_JOINTS = re.compile(r"(?<=[,:/=+&])")

_FILE = re.compile(r"\S*/.*\.json")  # alone in its line; names of configs have blanks
# A command or a variable to paste, as a line of its own or behind a colon, to the line's end.
_PASTED = re.compile(r"\s*(?:[^`]*: )?(?:export|unset|tuner|curl|patch) \S")
# A command within a sentence, and the blocks in the name of a config.
_QUOTED = re.compile(r"`[^`]*`|=\[\d+, \d+\]")
_GLUE = "\0"  # a blank at which no line may end


def printable(line: str) -> str:
    """Replace control characters, which text from elsewhere could send to the terminal."""
    return "".join(c if c.isprintable() else " " for c in line)


def columns() -> int:
    """Return the width of text: COLUMNS, else the terminal's width; 80 off a terminal."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def list_width() -> int | None:
    """Return the `width` of a table with a row for each object: a pipe gets a row in one line."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else sys.maxsize


def folded(text: str, width: int | None = None) -> str:
    """Fold a text into lines that fit. A word that is too long, such as a path, stays whole.

    A folded line keeps its indentation. A line that quotes another text ("| ...") stays, and so
    does a command to paste, in a line or between backticks.
    """
    return "\n".join(_folded(line, width or columns()) for line in text.split("\n"))


def _folded(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    whole = line.startswith(f"{indent}| ") or _PASTED.match(line) or _FILE.fullmatch(line)
    if len(line) <= width or whole:
        return line
    glued = _QUOTED.sub(lambda match: match[0].replace(" ", _GLUE), line)
    return textwrap.fill(
        glued, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ).replace(_GLUE, " ")


def gain_text(gain: float) -> str:
    """Cut a gain to two decimals, so that it is never overstated: 1.8854 is 1.88x."""
    # The small number corrects binary fractions: 1.15 is stored as 1.1499999...
    return f"{math.floor(gain * 100 + 1e-9) / 100:.2f}x" if math.isfinite(gain) else "-"


def verdicts(headers: Sequence[str], rows: Sequence[Sequence[object]], by: str = "M") -> str:
    """Return a table of checked entries, whose last two columns are a verdict and its details.

    Details are a compiler's words and too long for a column: each stands once below the table, with
    the cells of the column `by`.
    """
    told: dict[str, dict[str, None]] = {}
    at = list(headers).index(by)
    for row in rows:
        if row[-1]:
            line = printable(f"{row[-2]}: {row[-1]}")
            told.setdefault(line, {})[str(row[at])] = None
    lines = [f"{line} ({by} {', '.join(some)})" for line, some in told.items()]
    return "\n".join([table(headers[:-1], [row[:-1] for row in rows]), *lines])


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Collection[str] = (),
    rule: bool = True,
    drop: Sequence[str] = (),
    width: int | None = None,
    whole: Collection[str] = (),
) -> str:
    """Pad columns to their widest cell; numbers are right-aligned, text is left-aligned.

    Cells are made `printable`. `right` names columns of text to right-align, and `whole` names
    columns that are never folded, such as ids; `rule` draws a line below the headers. A table wider
    than `width` (default: `columns()`) loses the columns that `drop` names, in that order, until it
    fits; then its widest text is folded.
    """
    limit = width or columns()
    cells = [["" if value is None else printable(str(value)) for value in row] for row in rows]
    numeric = [
        name in right
        or (bool(rows) and all(isinstance(row[i], int | float | None) for row in rows))
        for i, name in enumerate(headers)
    ]
    shown = list(range(len(headers)))
    natural = [max(map(len, (name, *(row[i] for row in cells)))) for i, name in enumerate(headers)]
    for name in drop:
        if _total([natural[i] for i in shown]) > limit and name in headers:
            shown.remove(list(headers).index(name))
    kept = [[row[i] for i in shown] for row in cells]
    names, numeric = [headers[i] for i in shown], [numeric[i] for i in shown]
    never = [numeric[i] or name in whole for i, name in enumerate(names)]
    widths = _fit([natural[i] for i in shown], names, kept, never, limit)

    def lines(row: Sequence[str]) -> list[str]:
        wrapped = [_wrapped(cell, wide) for cell, wide in zip(row, widths, strict=True)]
        return [_padded(line, widths, numeric) for line in zip_longest(*wrapped, fillvalue="")]

    ruled = [_padded(["-" * wide for wide in widths], widths, numeric)] if rule else []
    return "\n".join([*lines(names), *ruled, *(line for row in kept for line in lines(row))])


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fit(
    natural: Sequence[int],
    headers: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    limit: int,
) -> list[int]:
    """Return the columns' widths in a table of at most `limit`, if text can be folded so far."""
    widths = list(natural)
    # First only between words, then within them too.
    for longest in (_WORD, _NARROWEST):
        least = [
            min(natural[i], _least(name, [row[i] for row in cells], numeric[i], longest))
            for i, name in enumerate(headers)
        ]
        while _total(widths) > limit:
            over = [i for i in range(len(widths)) if widths[i] > least[i]]
            if not over:
                break
            widths[max(over, key=lambda i: widths[i])] -= 1
    return widths


def _least(header: str, cells: Sequence[str], numeric: bool, longest: int) -> int:
    """Return the narrowest width of a column; words up to `longest` stay whole."""
    in_header = max(map(len, header.split() or [""]))
    if numeric:
        return max(in_header, max(map(len, cells), default=0))
    words = (len(word) for cell in cells for word in cell.split())
    return max(in_header, min(longest, max(words, default=0)))


def _wrapped(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    lines: list[str] = []
    for line in textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False):
        rest = ""
        for piece in _JOINTS.split(line) if len(line) > width else [line]:
            if rest and len(rest) + len(piece) > width:
                lines.append(rest)
                rest = ""
            rest += piece
            while len(rest) > width:
                lines.append(rest[:width])
                rest = rest[width:]
        lines.append(rest)
    return lines


def _padded(line: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(line, widths, numeric, strict=True)
    )
    return GAP.join(padded).rstrip()
