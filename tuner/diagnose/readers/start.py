"""How far a server's start came, by the lines that its steps print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from tuner.diagnose.readers.collective import Communicator
from tuner.diagnose.readers.reading import HANG_MARKS, HANGS, NUM, Reading, Whole, of_load
from tuner.diagnose.table import Kind
from tuner.engines.logs.lines import BLANKS, rank_of
from tuner.files import shipped_toml

# vLLM before 0.9 says the second, and people who copy lines by hand leave the count out.
_ALL_LOADED = re.compile(
    r"checkpoint shards ?:\s*100% ?completed(?!.*\d/\d)|Loading model weights took [\d.]+ ?GB",
    re.IGNORECASE,
)
_SHARDS = re.compile(r"checkpoint shards:.*?\b(\d{1,4})/(\d{1,4})\b")
_ELAPSED = re.compile(r"checkpoint shards:.*?\[(?:(\d{1,3}):)?(\d\d):(\d\d)<")  # of tqdm
_LONG_S = 60.0
# What engines log of how long a part of the start took, s.
_TIMES = {
    "weights": re.compile(
        rf"Loading weights took ({NUM}) s|Model loading took [\d.]+ GiB(?: memory)? and "
        rf"({NUM}) s|Load weight end\. elapsed=({NUM}) s"
    ),
    "compile": re.compile(rf"torch\.compile t(?:akes|ook) ({NUM}) s"),
    "cache": re.compile(rf"init engine \(profile, create kv cache, warmup model\) took ({NUM}) s"),
    "graphs": re.compile(
        rf"Graph capturing finished in ({NUM}) secs|raph end\. (?:Time elapsed: |elapsed=)"
        rf"({NUM}) s"
    ),
}
_BOTH = "both"
_MOST_RANKS = 512
_NAMED = 8


@dataclass(frozen=True)
class Step:
    """A part of a start, until a text of a later one."""

    name: str
    says: str
    texts: Mapping[str, Sequence[str]]  # of the sources of "sglang", "vllm", or "both"
    next: str
    fix: Sequence[str]
    took: str = ""  # the name of what its time is of
    shorter: Sequence[str] = ()  # what makes it shorter


@cache
def steps() -> Sequence[Step]:
    """The steps in their order. Source of their texts: the engines on disk (see the tests)."""
    return [Step(**row) for row in shipped_toml(__package__, "start.toml")["step"]]


def _squeezed(text: str) -> bytes:
    return text.encode().translate(None, BLANKS)


@cache
def _texts() -> Sequence[tuple[bytes, int, str]]:
    return [
        (_squeezed(text), at, engine)
        for at, step in enumerate(steps())
        for engine, texts in step.texts.items()
        for text in texts
    ]


@cache
def _marks() -> Sequence[bytes]:
    return (
        *(text for text, *_ in _texts()),
        b"Loadingmodelweightstook",
        *HANG_MARKS,
        *Communicator.marks,
    )


_LOADED = next(at for at, step in enumerate(steps()) if step.name == "loaded")
_LINKS = next(at for at, step in enumerate(steps()) if step.name == "links")


@dataclass
class StartReader:
    """The last step of each rank."""

    opens: Sequence[bytes] = field(default_factory=_marks)
    marks: Sequence[bytes] = field(default_factory=_marks)
    _last: dict[str, tuple[int, str]] = field(default_factory=dict)  # by rank: step, FILE:LINE
    _shards: str = ""
    _engine: str = ""
    _times: dict[str, tuple[float, str]] = field(default_factory=dict)  # by step: s, FILE:LINE
    _hangs: str = ""  # FILE:LINE of the words of somebody who says so
    _nccl: Communicator = field(default_factory=Communicator)

    def read(self, line: str, where: str) -> None:
        if " batch" in line and self._serves():
            return  # a log may have a million lines of load
        self._nccl.read(line, where)
        low = _squeezed(line)
        found = [(at, engine) for text, at, engine in _texts() if text in low]
        if "eights took" in line or "100%" in line:
            found += [(_LOADED, "vllm")] * bool(_ALL_LOADED.search(line))
        if not found:
            if not self._hangs and HANGS.search(line):
                self._hangs = where
            return
        rank = "".join(rank_of(line))
        self._keep_times(line, where)
        at, engine = max(found)
        self._engine = engine if engine != _BOTH else self._engine
        if match := _SHARDS.search(line):
            self._shards = f"{match[1]} of {match[2]}"
            at = _LOADED if match[1] == match[2] else at
        if at == 0 and self._serves():  # the next start in one log
            self._last.clear()
        if at == _LINKS:  # those before are torch's own
            self._nccl.made = ""
        if at >= self._last.get(rank, (0, ""))[0] and len(self._last) < _MOST_RANKS:
            self._last[rank] = at, where

    def told(self, whole: Whole) -> Iterator[Reading]:
        """Where the start stands, if it does not serve and nothing else says why."""
        if self._hangs and "graphs_blamed" in whole.facts:
            nodes = ["nodes"] if "nodes" in whole.facts else ["one"]
            yield of_load("graphs_blamed", self._hangs, self._engine, {}, *nodes)
        if self._hangs and not (whole.failed or whole.stops):
            begun = [*self._nccl.begun()]
            yield from begun
            if begun:
                return
        if whole.failed or whole.explained:
            return
        slow = [*self._slow()]
        yield from slow
        if slow:
            return
        waits = [*self._nccl.told(bool(self._hangs))]
        yield from waits
        if waits or self._serves():
            return
        if not self._last and self._nccl.made and self._hangs:
            self._last[""] = _LINKS, self._nccl.made
        yield from self._stands() if self._last else self._untold()

    def _stands(self) -> Iterator[Reading]:
        """The last step of the rank that is behind."""
        ranks = {rank: place for rank, place in self._last.items() if rank} or self._last
        behind = min(at for at, _ in ranks.values())
        step = steps()[behind]
        if step.name == "prompt" and not self._hangs:
            return  # servers for prefill alone print no more
        late = [rank for rank, (at, _) in ranks.items() if at == behind and rank]
        where = next(place for at, place in reversed(list(ranks.values())) if at == behind)
        if behind == _LINKS and self._nccl.made:
            step, where = self._made(step), self._nccl.made
        ahead = sorted({steps()[at].says for at, _ in ranks.values() if at > behind})
        cause = [step.next]
        if step.name == "weights" and self._shards:
            cause.insert(0, f"The text shows {self._shards} shards of the checkpoint.")
        if ahead and late:
            named = ", ".join(late[:_NAMED]) + (" and others" if len(late) > _NAMED else "")
            cause.insert(0, f"{named}: the last that is shown. Of other ranks: {ahead[-1]}.")
        if not self._hangs:
            cause.insert(
                0,
                "If the log goes no further than this text and the server still runs, the start "
                "waits here. If it has ended, the lines after these, or those of another process, "
                "tell why.",
            )
        yield Reading(
            "start_waits",
            Kind.WAITS if self._hangs else Kind.NOTE,
            f"the last step of the start that the text shows: {step.says}",
            where,
            cause,
            step.fix,
            {"step": step.name, "ranks": late, "shards": self._shards or None},
            self._engine,
        )

    def _made(self, step: Step) -> Step:
        """The step after NCCL was loaded, which no line of an engine shows."""
        after = "Next comes the first collective over it, which seems not to return if it stays so."
        says = "NCCL's communicator is made"
        return replace(
            step, name="made", says=says, next=f"{after} {self._nccl.usual}", fix=self._nccl.fix()
        )

    def _keep_times(self, line: str, where: str) -> None:
        """Keep the longest time of each step: ranks and models write their own."""
        if match := _ELAPSED.search(line):
            hours, minutes, seconds = (int(part or 0) for part in match.groups())
            self._keep_time("weights", 3600.0 * hours + 60 * minutes + seconds, where)
        for name, pattern in _TIMES.items():
            if match := pattern.search(line):
                took = float(next(filter(None, match.groups())))
                self._keep_time(name, took, where)

    def _keep_time(self, name: str, took: float, where: str) -> None:
        self._times[name] = max(self._times.get(name, (0.0, where)), (took, where))

    def _slow(self) -> Iterator[Reading]:
        """Where the time of a long start went, if its lines tell it."""
        if "cache" in self._times:  # it holds two others
            whole, where = self._times["cache"]
            known = sum(self._times.get(name, (0.0, ""))[0] for name in ("compile", "graphs"))
            self._times["cache"] = max(0.0, whole - known), where
        longest = max(self._times, key=lambda name: self._times[name][0], default="")
        if not longest or self._times[longest][0] < _LONG_S:
            return
        if self._hangs and not self._serves():
            return  # where it stands says more
        named = {step.name: step for step in steps()}
        told = [f"{named[name].took} {took:,.0f} s" for name, (took, _) in self._times.items()]
        part = longest == "weights" and self._shards
        shards = [f"Its last line shows {part} shards of the checkpoint."] if part else []
        yield Reading(
            "start_slow",
            Kind.WAITS,
            f"a long start: {named[longest].took} takes most of the time that the text tells",
            self._times[longest][1],
            [f"The text tells: {', '.join(told)}.", *shards],
            named[longest].shorter,
            {name: took for name, (took, _) in self._times.items()},
            self._engine,
        )

    def _untold(self) -> Iterator[Reading]:
        """Somebody says that a server hangs, and no line of it is there."""
        if self._hangs:
            yield Reading(
                "start_waits",
                Kind.NOTE,
                "somebody says that it hangs, and no line of the server shows where",
                self._hangs,
                ["Where a server waits is in the last lines of each rank, or in its stack."],
                [
                    "Give the whole log, of all nodes, from the first line on.",
                    "If it runs on several nodes: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name "
                    "the interface by which they reach each other. Look at each node:",
                    "$ tuner preflight",
                    "Take the stack of each process of the server, and give these too:",
                    "$ py-spy dump --pid PID",
                ],
            )

    def _serves(self) -> bool:
        return any(at == len(steps()) - 1 for at, _ in self._last.values())
