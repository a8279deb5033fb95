"""The cells of the first page. Jinja takes ten times as long for each, and there are thousands.

A cell is two elements, and its style draws the mark: a browser takes long for each element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from api.pages.names import device_short, gain_words, status_words
from api.pages.plain import plain
from tuner.tuning.gains import WITHOUT_US


def cells_of(
    cells: Mapping[str, Mapping[str, Any]], columns: Sequence[str], result: str, gap: str
) -> Markup:
    """The cells of a row, in the order of the devices. `cells` are those of the API's answer.

    `result` and `gap` are the addresses of a result and of a form, which a device's name completes.
    """
    to_result, to_gap = escape(result), escape(gap)
    shown = (_cell(name, cells.get(name), to_result, to_gap) for name in columns)
    return Markup("\n".join(shown))  # noqa: S704 - every text in it is escaped


def boxes_of(
    cells: Mapping[str, Mapping[str, Any]], columns: Sequence[str], row: str, field: str, ticks: int
) -> tuple[Markup, int]:
    """As `cells_of`, with a box to tick where nothing is stored: the first `ticks` are ticked.

    `row` names the row, and a device before `field` the box. Also returns the number of boxes.
    """
    named, of_row = escape(field), escape(row)
    shown, boxes = [], 0
    for name in columns:
        if (cell := cells.get(name)) is not None and cell["state"] != "missing":
            shown.append(_shown(cell))
            continue
        ticked = " checked" if boxes < ticks else ""
        boxes += 1
        said = f'aria-label="{of_row} on {escape(device_short(name))}"'
        box = f'<input type="checkbox" name="{escape(name)} {named}" value="true" {said}{ticked}>'
        shown.append(f'<td><label class="cell gap">{box}</label></td>')
    return Markup("\n".join(shown)), boxes  # noqa: S704 - every text in it is escaped


def _cell(name: str, cell: Mapping[str, Any] | None, result: str, gap: str) -> str:
    device = escape(name)
    if cell is None:
        said = 'aria-label="nothing: queue a job"'
        return f'<td><a class="cell gap" href="{gap}{device}" {said}></a></td>'
    state, title = cell["state"].value, _title(cell)
    if state == "missing":
        said = 'aria-label="missing: queue a job"'
        return f'<td><a class="cell missing" href="{gap}{device}"{title} {said}></a></td>'
    speedup = gain_words(cell["speedup"])
    said = f'aria-label="{speedup} {status_words(state)}"'
    return f'<td><a class="cell {state}" href="{result}{device}"{title} {said}>{speedup}</a></td>'


def _shown(cell: Mapping[str, Any]) -> str:
    """A cell between boxes."""
    state, speedup = cell["state"].value, gain_words(cell["speedup"])
    said = f'<span class="hide">{status_words(state)}</span>'
    return f'<td><span class="cell {state}"{_title(cell)}>{speedup}{said}</span></td>'


def _title(cell: Mapping[str, Any]) -> str:
    over = f"over {cell['over']}" if cell["over"] not in (None, WITHOUT_US) else ""
    told = "; ".join(filter(None, (str(plain(cell["why"])), over)))
    return f' title="{escape(told)}"' if told else ""
