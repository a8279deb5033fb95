"""An estimate as text of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tuner.profile.estimate import Estimate, FamilyShare, PhaseEstimate
from tuner.profile.headroom import Basis
from tuner.profile.profile import KernelTime, Phase
from tuner.render import printable, table

_WIDTH = 80
_LEAST = 0.001  # smaller families share a row
_NAMED = 8  # kernels that are listed by name
_LONGEST = 60  # characters of a kernel's name
_BASES = {
    Basis.IN_USE: "tuned file in use",
    Basis.MEASURED: "measured",
    Basis.PREDICTED: "predicted",
    Basis.ELSEWHERE: "as elsewhere",
}


def render_estimate(found: Estimate) -> str:
    """A table for each phase, and the kernels that it does not name."""
    profile = found.profile
    lines = [printable(profile.device or "a GPU that the trace does not name")]
    lines += textwrap.wrap(f"phases are told by {profile.told_by}", _WIDTH)
    for phase in found.phases:
        lines += ["", *_phase(phase, found)]
    lines += _kernels("other Triton kernels", found.named("triton"))
    lines += _kernels("kernels that no row knows", found.named(""))
    lines += ["", *_notes(found)]
    return "\n".join(lines) + "\n"


def _phase(phase: PhaseEstimate, found: Estimate) -> Iterator[str]:
    part = phase.time_us / found.profile.time_us()
    steps = [step for step in found.profile.steps if step.phase is phase.phase]
    count = sum(step.count for step in steps)
    each = f", {count:,} step{'s' * (count != 1)} of {_sizes(phase.phase, found)}" if count else ""
    title = "phase unknown" if phase.phase is Phase.UNKNOWN else phase.phase.value
    yield from textwrap.wrap(f"{title}: {phase.time_us / 1e3:,.1f} ms, {part:.0%}{each}", _WIDTH)
    shown = [row for row in phase.rows if row.share >= _LEAST or row.headroom]
    rest = sum(row.share for row in phase.rows) - sum(row.share for row in shown)
    head = ("kernels", "share", "ms", "can become", "saves", "by")
    rows = [_row(row) for row in shown]
    if rest:
        rows.append(("the rest", f"{rest:.1%}", f"{rest * phase.time_us / 1e3:,.1f}", "", "", ""))
    yield table(head, rows, right=head[1:5])
    if phase.gain > 1.0005:
        bases = {row.headroom.basis for row in phase.rows if row.headroom}
        how = "about" if Basis.ELSEWHERE in bases else "at most"
        yield f"with all of that, {title} becomes {how} {phase.gain:.2f}x as fast"


def _row(row: FamilyShare) -> tuple[str, ...]:
    room = row.headroom
    cells = row.title, f"{row.share:.1%}", f"{row.time_us / 1e3:,.1f}"
    if room is None:
        return (*cells, "", "", "")
    if room.basis is Basis.IN_USE:
        return (*cells, "", "", _BASES[room.basis])
    return (*cells, f"{room.gain:.2f}x", f"{row.saved:.1%}", _BASES[room.basis])


def _sizes(phase: Phase, found: Estimate) -> str:
    steps = [step for step in found.profile.steps if step.phase is phase]
    sequences = sorted({step.sequences for step in steps})
    tokens = sorted({step.new_tokens for step in steps})
    text = f"{_range(sequences)} sequences" if sequences != [1] else "1 sequence"
    return f"{text} and {_range(tokens)} new tokens" if tokens != [0] else text


def _range(values: list[int]) -> str:
    return f"{values[0]:,} to {values[-1]:,}" if len(values) > 1 else f"{values[0]:,}"


def _kernels(title: str, kernels: list[KernelTime]) -> Iterator[str]:
    """The names of kernels, each with its time over all phases."""
    times: dict[str, float] = {}
    for kernel in kernels:
        times[kernel.name] = times.get(kernel.name, 0.0) + kernel.time_us
    if not times:
        return
    longest = sorted(times.items(), key=lambda item: -item[1])
    yield f"\n{title}:"
    for name, us in longest[:_NAMED]:
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."
        yield f"  {us / 1e3:9,.2f} ms  {printable(short)}"
    if len(longest) > _NAMED:
        yield f"  and {len(longest) - _NAMED} others; --json has them all"


def _notes(found: Estimate) -> Iterator[str]:
    profile = found.profile
    notes = [f"Families know {profile.coverage():.1%} of the kernels' time."]
    bases = {row.headroom.basis for one in found.phases for row in one.rows if row.headroom}
    if not bases:
        notes.append(
            "No kernel of this trace is of a kind that is tuned. Whether tuned Triton is faster "
            "than what ran here, `tuner prove MODEL --server` with --before-args measures."
        )
    if bases:
        notes.append(
            '"can become" says how many times as fast the kernels can become, "saves" which part '
            "of the phase that would save."
        )
    if Basis.ELSEWHERE in bases:
        notes.append(
            '"as elsewhere": no result is stored for these kernels, so the figure is the mean gain '
            "on other models and GPUs (docs/prove.md). Name the model with --model, and tune."
        )
    if profile.idle_us:
        notes.append(
            f"{profile.idle_us / 1e3:,.0f} ms without requests are left out of all figures."
        )
    for note in notes:
        yield from textwrap.wrap(note, _WIDTH)
