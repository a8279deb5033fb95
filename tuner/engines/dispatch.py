"""Which kernel an engine runs for a problem, by the rules that were read from its dispatch code.

An answer refuses nothing: it says whether the files that the tuner writes will count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module

from tuner.devices.table import Device
from tuner.engines.dispatch_answer import Kernel, Runs
from tuner.engines.dispatch_table import (
    ARCHITECTURE,
    CHECKPOINT,
    DispatchRule,
    DispatchTable,
    UnknownFact,
    dispatch_table,
)
from tuner.engines.engine import engine_package, release_of
from tuner.engines.settings import options_text
from tuner.errors import BadProblem
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Problem

_SWITCH = {"true": "1", "false": "0"}  # of environment variables
_GROUPS = re.compile(r" groups of (\d{1,9})")
_NOTHING: Mapping[str, str] = {}


def what_runs(
    engine: str,
    version: str,
    problem: Problem,
    device: Device,
    flags: Mapping[str, str] = _NOTHING,
) -> Runs | None:
    """The kernel that a version of an engine runs; None where its rules do not say.

    An empty `version` is the newest one that was read; one that was not read follows the newest
    one before it. `flags` are the server's flags ("--moe-runner-backend") and environment
    variables; a flag without a value is "1". `of_class` adds the model's class to them. Where a
    server has a kernel only with further flags, the answer is of a server that has them.
    """
    runs = _runs(engine, version, problem, device, flags)
    further = runs.to_triton if runs and runs.to_triton.keys().isdisjoint(flags) else {}
    if runs and further and all(kernel.backend == "none" for kernel in runs.kernels):
        started = _runs(engine, version, problem, device, {**flags, **further})
        if started and started.always_triton:
            return replace(started, needs=further, reads=runs.reads)
    return runs


def _runs(
    engine: str, version: str, problem: Problem, device: Device, flags: Mapping[str, str]
) -> Runs | None:
    table = dispatch_table(engine)
    if table is None:
        return None
    try:
        release = table.release(version) if version else table.releases[-1]
    except BadProblem:
        return None
    given = {name: _SWITCH.get(value.lower(), value) for name, value in flags.items()}
    given = _of_its_type(table.with_new_names(given), problem)
    found = _found(table, release, problem, device, given)
    if not found:
        return None
    named = {**table.defaults, **given}
    others = [rule for rule in found if not rule.triton] or found
    wanted = next((rule.to_triton for rule in others if rule.to_triton), {})
    kernels = [_kernel(table, rule, release, named, given) for rule in found]
    stops = _stops(kernels[-1], problem, device, engine)
    refused = _refused(table, version or release, problem, named)
    if stops or refused:  # so no tuned file is read
        kernels, wanted = [replace(kernel, triton=False) for kernel in kernels], {}
    merged = _merged(kernels)
    return Runs(
        engine=engine,
        version=version,
        release=release,
        doubt=_doubt(table, release, version, problem, device, given, merged),
        device=device.name,
        kernels=merged,
        to_triton={name: v for name, v in wanted.items() if named.get(name, "") != v},
        reads=stops or refused or others[0].reads,
        notes=[
            *dict.fromkeys(rule.note for rule in found if rule.note),
            *_refusals(engine, version, found, problem, device),
            *_unknown_checkpoint(table, release, problem, device, given),
        ],
        problems=(problem.spec(),),
    )


NOT_KNOWN = "how the checkpoint stores its experts is not known, and may choose another kernel"


def _unknown_checkpoint(
    table: DispatchTable,
    release: str,
    problem: Problem,
    device: Device,
    given: Mapping[str, str],
) -> list[str]:
    """Words if rules of checkpoints may hold, and nothing is known of the model."""
    if given.keys() & {ARCHITECTURE, CHECKPOINT}:
        return []
    flags = {**table.defaults, **given}
    of_checkpoints = (
        replace(rule, flags={n: values for n, values in rule.flags.items() if n != CHECKPOINT})
        for rule in table.rules
        if CHECKPOINT in rule.flags
    )
    may_hold = any(one.holds(release, problem, device, flags) for one in of_checkpoints)
    return [NOT_KNOWN] if may_hold else []


def _doubt(
    table: DispatchTable,
    release: str,
    version: str,
    problem: Problem,
    device: Device,
    given: Mapping[str, str],
    runs: Sequence[Kernel],
) -> str:
    """Say what the release read after a version runs; "" if these are the backends of `runs`."""
    following = table.releases[table.releases.index(release) + 1 :][:1]
    if not (version and following) or release_of(version) <= release_of(release):
        return ""
    (later,) = following
    named = {**table.defaults, **given}
    rules = _found(table, later, problem, device, given)
    after = _merged([_kernel(table, rule, later, named, given) for rule in rules])
    if not after or [kernel.backend for kernel in after] == [kernel.backend for kernel in runs]:
        return ""
    return f"{later} runs {', else '.join(f'{kernel.name}{kernel.words}' for kernel in after)}"


def engine_runs(
    engine: str,
    version: str,
    problems: Iterable[Problem],
    device: Device,
    flags: Mapping[str, str] = _NOTHING,
) -> list[Runs]:
    """`what_runs` for several problems: each answer once, with the problems that it holds for."""
    asked = list(dict.fromkeys(problems))
    answers: dict[str, Runs] = {}
    groups: dict[str, list[Problem]] = {}
    for problem in asked:
        if answer := what_runs(engine, version, problem, device, flags):
            line = answers.setdefault(answer.line(), answer).line()
            groups.setdefault(line, []).append(problem)
    return [
        replace(
            answer,
            problems=tuple(problem.spec() for problem in groups[line]),
            subject="here" if len(answers) == 1 else _subject(groups[line], asked),
        )
        for line, answer in answers.items()
    ]


def seen_to_run(
    engine: str,
    version: str,
    problems: Iterable[Problem],
    device: Device,
    flags: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """The settings by which a server that looks for files of these problems runs Triton's kernel.

    They count only where the engine looks for a file as it launches that kernel, and where flags
    and rules leave another one possible. `version` may be empty, as for `what_runs`.
    """
    table, seen = dispatch_table(engine), dict[str, str]()
    for problem in problems:
        runs = what_runs(engine, version, problem, device, {**flags, **seen})
        if not (table and runs) or runs.always_triton:
            continue
        # The server's own version counts: the rules may be of a release near it.
        if table.looks_late(version or runs.release, problem):
            seen |= {name: value for name, value in runs.to_triton.items() if value}
    return seen


def _subject(group: Sequence[Problem], asked: Sequence[Problem]) -> str:
    """Words for some of the problems: a kind where all of the kind are among them."""
    totals = Counter(problem.family for problem in asked)
    counts = Counter(problem.family for problem in group)
    names = [
        problem.family if counts[problem.family] == totals[problem.family] else problem.spec()
        for problem in group
    ]
    return f"for {' and '.join(dict.fromkeys(names))}"


def _found(
    table: DispatchTable,
    release: str,
    problem: Problem,
    device: Device,
    given: Mapping[str, str],
) -> list[DispatchRule]:
    """The rules that hold, up to the first one that depends on nothing unknown."""
    flags = {**table.defaults, **given}
    found: list[DispatchRule] = []
    answered: set[str] = set()  # a rule below holds only where these are not true
    for rule in table.rules:
        if not rule.holds(release, problem, device, flags):
            continue
        known = _settled(table, rule, given)
        if known is False or (known is None and rule.unknown in answered):
            continue
        found.append(rule)
        if known:
            return found
        answered.add(rule.unknown)
    return []


def _settled(table: DispatchTable, rule: DispatchRule, given: Mapping[str, str]) -> bool | None:
    """Whether a rule's `if` is true; None where nobody knows."""
    if not rule.unknown:
        return True
    asked = table.unknown[rule.unknown]
    if asked.flag in given:
        return given[asked.flag] == asked.value
    return asked.of_model(given)


def _of_its_type(given: dict[str, str], problem: Problem) -> dict[str, str]:
    """The settings; without the checkpoint if its experts are of another type than the problem.

    They may be 16-bit if servers quantise them as they load. Groups that the problem has smaller,
    as the checkpoint's do not divide it, are "halved".
    """
    stored, dtype = given.get(CHECKPOINT, ""), getattr(problem, "dtype", None)
    at_load = stored.endswith(" none") and given.get("--quantization") == "fp8"
    own = isinstance(dtype, Dtype) and dtype.value == stored.partition(" ")[0]
    if not (own or at_load):
        return {name: value for name, value in given.items() if name != CHECKPOINT}
    _, width = getattr(problem, "block_shape", None) or (0, 0)
    groups = _GROUPS.search(stored)
    return {**given, CHECKPOINT: f"{stored} halved"} if groups and width < int(groups[1]) else given


def _kernel(
    table: DispatchTable,
    rule: DispatchRule,
    release: str,
    flags: Mapping[str, str],
    given: Mapping[str, str],
) -> Kernel:
    open_question = _settled(table, rule, given) is None
    asked = table.unknown[rule.unknown] if open_question else UnknownFact("")
    backend = _filled(rule.backend, flags)
    return Kernel(
        name=_filled(rule.kernel, flags),
        backend=table.backends.get(backend, backend),
        triton=rule.triton,
        condition=asked.words,
        source=rule.sources[release],
        needs=asked.installed,
        enough=bool(asked.installed) and asked.enough,
    )


def _filled(text: str, flags: Mapping[str, str]) -> str:
    """The text with flags' values in place of "{--flag}"."""
    return re.sub(r"\{(.+?)\}", lambda match: flags.get(match[1], ""), text)


def _merged(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels without those before the last one that are the last one in any case."""
    kept = list(kernels)
    while len(kept) > 1 and kept[-2].name == kept[-1].name:
        del kept[-2]
    return kept


def _stops(last: Kernel, problem: Problem, device: Device, engine: str) -> str:
    """Words if Triton, as the last choice of an engine, cannot compile the problem's type."""
    dtype = getattr(problem, "dtype", None)
    if not (last.triton and dtype is Dtype.FP8_W8A8):
        return ""
    return stops_at_fp8(engine, problem.family, device)


def stops_at_fp8(engine: str, family: str, device: Device) -> str:
    """Words if Triton's kernels of 8-bit floats do not compile on the GPU; empty if they do."""
    if not device.architecture.stops_at_fp8:
        return ""
    layer = family == "fused_moe" and engine == "sglang"
    marlin = ", or try --moe-runner-backend marlin, if the release has it" if layer else ""
    return (
        f"Triton has no 8-bit floats on {device.target.name}, so a server that runs it stops with "
        f"a compile error: serve 16-bit or int8 weights here{marlin}"
    )


def _refused(table: DispatchTable, version: str, problem: Problem, named: Mapping[str, str]) -> str:
    """Words where the version does not start with Triton's kernel for the model's class."""
    for one in table.refusals:
        if one.holds(version, problem, named.get(ARCHITECTURE, "")):
            return f"no tuned file is read: with {options_text(one.flags)} {one.words}"
    return ""


def _refusals(
    engine: str, version: str, rules: Sequence[DispatchRule], problem: Problem, device: Device
) -> list[str]:
    """What the engine's table of compiled kernels has against the problem."""
    names = [rule.compiled for rule in rules if rule.compiled]
    if not names:
        return []
    module = import_module(f"{engine_package(engine)}.compiled_kernels")
    return [text for name in names for text in module.refusals(name, version, problem, device)]
