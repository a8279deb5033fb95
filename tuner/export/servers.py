"""Find the kernel that servers run, by the rules and by the state of servers when winners were
tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tuner.backends.registry import stale_words
from tuner.devices.table import Device
from tuner.engines.dispatch import Kernel, Runs, what_runs
from tuner.engines.settings import class_alone, flags_alone, settings_kept, settings_to_keep
from tuner.problems.points import Problem, ServerSettings
from tuner.problems.results import Entry, Winner
from tuner.tuning.gains import OWN, name_of


def _served(flags: Mapping[str, str], winners: Sequence[Winner]) -> dict[str, str]:
    """Return the servers' settings: `flags`, with the newest winners' settings for open flags."""
    known = _own(winners)
    if class_alone(flags):
        return dict(flags)
    return {**class_alone(known), **flags} if flags else known


def _own(winners: Sequence[Winner]) -> dict[str, str]:
    """Return the settings of the servers that the newest winners were found for; empty: not
    known.
    """
    known = [winner for winner in winners if winner.entry.server]
    newest = max(known, key=lambda winner: winner.published_at, default=None)
    return settings_kept(newest.entry.server) if newest else {}


def running(
    problem: Problem,
    winners: Sequence[Winner],
    device: Device,
    engine: tuple[str, str],
    flags: Mapping[str, str],
) -> tuple[Runs | None, Kernel | None, dict[str, str]]:
    """Return the servers' kernels by the rules, which of these kernels runs, and the servers'
    settings.

    None: not known. The settings have the flags without which servers would not start.
    """
    served = _served(flags, winners)
    runs = what_runs(*engine, problem, device, served)
    own = what_runs(*engine, problem, device, _own(winners) or class_alone(served))
    kernel = kernel_that_runs(runs, own, [winner.entry for winner in winners])
    return runs, kernel, {**served, **(runs.needs if runs else {})}


def kernel_that_runs(
    runs: Runs | None, own: Runs | None, entries: Sequence[Entry]
) -> Kernel | None:
    """Return the kernel that servers run, as far as the rules and the entries say; None: not known.

    The tuning of the entries saw the installed backends, for servers that run `own`. This is no
    answer for servers whose flags make another choice.
    """
    if runs is None or runs.older:
        return None
    if kernel := runs.without_us():
        return kernel
    names = {entry.without_us for entry in entries if entry.incumbents}
    if not names:
        return None
    if own is None or runs.kernels != own.kernels or len(names - set(OWN)) > 1:
        return None
    if "" in names or (names - set(OWN) and names & set(OWN)):
        return None
    return next((one for one in runs.kernels if _is(one, names)), None)


def for_servers(
    winners: Sequence[Winner], device: Device, engine: tuple[str, str], flags: Mapping[str, str]
) -> list[Winner]:
    """Return the winners, as servers with these flags run them, without stale times.

    `engine`: the name and version that the servers run.
    """
    found: list[Winner] = []
    for problem, mine in groupby(without_stale(winners), key=lambda winner: winner.problem):
        some = list(mine)
        _, kernel, started = running(problem, some, device, engine, flags)
        if kernel or flags_alone(started) != flags_alone(_own(some)):
            some = with_server_kernel(some, kernel, settings_to_keep(engine[0], problem, started))
        found += some
    return found


def without_stale(winners: Sequence[Winner]) -> list[Winner]:
    """Return the winners without times of backends of which another version is installed here."""
    return [
        replace(
            winner,
            entry=replace(
                winner.entry,
                incumbents={
                    name: one
                    for name, one in winner.entry.incumbents.items()
                    if not stale_words(name, [winner.environment])
                },
            ),
        )
        for winner in winners
    ]


def with_server_kernel(
    winners: Sequence[Winner], kernel: Kernel | None, server: ServerSettings
) -> list[Winner]:
    """Return the winners with the name of the kernel that a server runs, if it is known."""
    return [
        replace(
            winner,
            entry=replace(
                winner.entry,
                without_us=name_of(kernel, winner.entry.incumbents) if kernel else "",
                server=server,
            ),
        )
        if winner.entry.incumbents
        else winner
        for winner in winners
    ]


def _is(kernel: Kernel, names: set[str]) -> bool:
    return kernel.triton if names <= set(OWN) else names == {kernel.backend}
