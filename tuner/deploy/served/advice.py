"""Which attention backend to use at which load, where the two sides ran different ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.deploy.served.compare import LoadGain
from tuner.engines.server import Server

_PHASES = {"prefill": "prefill_tok_s", "decode": "decode_tok_s"}
_OWN = "the engine's own choice"


def backend_advice(
    server: Server, before: Sequence[str], after: Sequence[str], gains: Sequence[LoadGain]
) -> list[str]:
    """A line for each load: "1x8192+128: use --attention-backend fa3 here".

    Empty where both sides' flags choose the same backends. Where the interval of a gain holds 1,
    the files' side is kept.
    """
    named = {
        phase: (server.backend(before, phase) or _OWN, server.backend(after, phase) or _OWN)
        for phase in _PHASES
    }
    if all(old == new for old, new in named.values()):
        return []
    by_load: dict[str, dict[str, LoadGain]] = {}
    for gain in gains:
        by_load.setdefault(str(gain.load), {})[gain.column.field] = gain
    return [f"{load}: {_line(server, named, found)}" for load, found in by_load.items()]


def _line(
    server: Server, named: Mapping[str, tuple[str, str]], gains: Mapping[str, LoadGain]
) -> str:
    best, clear = {}, False
    for phase, field in _PHASES.items():
        gain = gains.get(field)
        verdict = gain.verdict if gain else "same"
        old, new = named[phase]
        best[phase] = old if verdict == "slower" else new
        clear |= verdict != "same" and old != new
    if not clear:
        return "no backend is clearly faster"
    if _OWN not in best.values():
        return f"use {server.backend_flags(best['prefill'], best['decode'])} here"
    if best["prefill"] == best["decode"]:
        return f"leave the attention backend to {_OWN} here"
    return f"use {best['prefill']} for prefill and {best['decode']} for decode here"
