"""Plain text for terminals and pipes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def printable(line: str) -> str:
    """Replace control characters, which text from elsewhere could send to the terminal."""
    return "".join(c if c.isprintable() else " " for c in line)


def gain_text(gain: float) -> str:
    """A gain cut to two decimals, so that it is never overstated: 1.8854 is 1.88x."""
    # The small number corrects binary fractions: 1.15 is stored as 1.1499999...
    return f"{math.floor(gain * 100 + 1e-9) / 100:.2f}x" if math.isfinite(gain) else "-"


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Collection[str] = (),
    rule: bool = True,
) -> str:
    """Columns padded to their widest cell; numbers are right-aligned, text is left-aligned.

    Cells are made `printable`. `right` names columns of text to right-align; `rule` draws a line
    below the headers.
    """
    cells = [["" if value is None else printable(str(value)) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]
    numeric = [
        name in right
        or (bool(rows) and all(isinstance(row[i], int | float | None) for row in rows))
        for i, name in enumerate(headers)
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    ruled = [line(["-" * width for width in widths])] if rule else []
    return "\n".join([line(headers), *ruled, *map(line, cells)])
