"""What a process waits for, by the stack that py-spy or Python's faulthandler wrote of it.

py-spy writes the innermost frame first, and so does faulthandler ("most recent call first").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from tuner.diagnose.readers.reading import Reading, Whole
from tuner.diagnose.table import Kind
from tuner.files import shipped_toml

# py-spy: `Thread 12 (idle): "MainThread"`. faulthandler: `Thread 0x07f (most recent call first):`.
_THREAD = re.compile(
    r'Thread (?P<id>0x[0-9a-fA-F]+|\d+) \((?P<state>[\w+ ]{1,30})\)(?:: "(?P<name>[^"]{1,80})")?'
    r"|(?:Current t|T)hread 0x[0-9a-fA-F]+ (?:\[[^\]]{0,40}\] )?\(most recent call first\)"
)
_PY_SPY = re.compile(
    r"^\s{2,}(?P<function>[\w<>.:]+)\s+\((?P<path>[^():]{1,300})(?::(?P<line>\d{1,7}))?\)\s*$"
)
_FAULTHANDLER = re.compile(
    r'^\s*File "(?P<path>[^"]{1,300})", line (?P<line>\d{1,7}) in (?P<function>[\w<>.]{1,200})\s*$'
)
_ENGINE = re.compile(r"(?:^|/)(?:sglang|vllm)/(?!.*(?:distributed|parallel_state|shm_broadcast))")
_WRAPS = re.compile(r"(?:^|/)torch/(?:_ops|utils/)")  # frames that only call what is asked for
# Functions of a batch of requests, so that the server had started.
_SERVES = re.compile(r"process_batch_result|run_batch|forward_batch_generation")
_INNERMOST = 4  # frames that can say what is waited for
_MOST_THREADS, _MOST_FRAMES = 400, 60
_MAIN = re.compile(r"(?:MainThread)?$|.*forward_thread")  # sglang's thread for batches
_FATAL = re.compile(r"Fatal Python error: ([^\n]{1,120})")


@dataclass(frozen=True)
class _Wait:
    """What innermost frames mean."""

    name: str
    says: str
    frames: Sequence[str]  # patterns of FUNCTION PATH
    cause: str
    fix: Sequence[str]


@cache
def _waits() -> Sequence[_Wait]:
    return [_Wait(**row) for row in shipped_toml(__package__, "stacks.toml")["wait"]]


def _runs() -> _Wait:
    return next(row for row in _waits() if row.name == "runs")


@dataclass
class _Thread:
    name: str
    where: str
    active: bool  # py-spy says so
    frames: list[tuple[str, str, str]] = field(default_factory=list)  # function, path, line

    def wait(self) -> _Wait | None:
        """What it waits for, by the innermost frame that tells it."""
        for function, path, _ in self.frames[:_INNERMOST]:
            for row in _waits():
                if any(re.search(one, f"{function} {path}") for one in row.frames):
                    return row
        return None

    def innermost(self) -> tuple[str, str, str]:
        """The innermost frame that is not only a wrapper of torch's."""
        return next((one for one in self.frames if not _WRAPS.search(one[1])), self.frames[0])

    def caller(self) -> str:
        """The innermost function of the engine, outside what it has for communication."""
        return next((_place(one) for one in self.frames if _ENGINE.search(one[1])), "")


@dataclass
class StackReader:
    """The main threads of the stacks in a text."""

    opens: Sequence[bytes] = (b"mostrecentcallfirst", b"(active", b"(idle)", b"FatalPythonerror")
    marks: Sequence[bytes] = (b"hread", b".py:", b'File"', b"(", b"FatalPythonerror")
    _fatal: str = ""  # what ended the process whose stack follows
    _ended: list[tuple[str, _Thread]] = field(default_factory=list)
    _threads: list[_Thread] = field(default_factory=list)

    def read(self, line: str, where: str) -> None:
        if match := _FATAL.search(line):
            self._fatal = match[1].strip()
            return
        if match := _THREAD.search(line):
            if self._fatal and "Current thread" in line:
                self._ended.append((self._fatal, _Thread("ended", where, active=False)))
                self._threads.append(self._ended[-1][1])
                self._fatal = ""
            elif len(self._threads) < _MOST_THREADS:
                active = (match["state"] or "").startswith("active")
                self._threads.append(_Thread(match["name"] or "", where, active))
            return
        frame = _PY_SPY.search(line) or _FAULTHANDLER.search(line)
        if frame and self._threads and len(self._threads[-1].frames) < _MOST_FRAMES:
            self._threads[-1].frames.append((frame["function"], frame["path"], frame["line"] or ""))

    def told(self, whole: Whole) -> Iterator[Reading]:
        """What main threads wait for, each kind of wait once; an idle one only if all are idle.

        A process that ended waits for nothing, so its other stacks say nothing either.
        """
        if self._ended:
            yield from self._crashed(*self._ended[0])
            return
        found: dict[str, tuple[_Wait, list[_Thread]]] = {}
        for thread in self._threads:
            wait = thread.wait() or (_runs() if thread.active and thread.frames else None)
            if _MAIN.match(thread.name) and wait:
                found.setdefault(wait.name, (wait, []))[1].append(thread)
        if len(found) > 1:
            found.pop("work", None)
        for wait, threads in found.values():
            first = threads[0]
            innermost, caller = _place(first.innermost()), first.caller()
            shown = f"The innermost frame is {innermost}"
            shown += f", called for {caller}." if caller not in ("", innermost) else "."
            times = f", in {len(threads)} stacks" if len(threads) > 1 else ""
            yield Reading(
                f"stack_{wait.name}",
                Kind.WAITS,
                f"a stack: {wait.says}{times}",
                first.where,
                [shown, wait.cause],
                wait.fix,
                {"stacks": len(threads), "innermost": innermost, "serves": self._serves()},
            )

    def _serves(self) -> bool:
        """Tell whether some thread has a batch of requests in hand."""
        return any(_SERVES.match(one[0]) for thread in self._threads for one in thread.frames)

    def _crashed(self, fatal: str, thread: _Thread) -> Iterator[Reading]:
        """What Python's faulthandler says of a process that ended in compiled code."""
        if not thread.frames:
            return
        innermost, caller = _place(thread.frames[0]), thread.caller()
        called = f", called for {caller}" if caller not in ("", innermost) else ""
        yield Reading(
            "process_crashed",
            Kind.STOPS,
            f"the process ended in compiled code: {fatal}",
            thread.where,
            [
                f"The innermost frame of Python is {innermost}{called}. What it called is compiled "
                "code, most often with a fault; Python's frames do not show where in it."
            ],
            [
                "Start without the option or variable that brings this code, or with another "
                "release of its package.",
                "If it is a collective or a kernel of a GPU, the first errors of the other ranks, "
                "and `dmesg | tail -50` of the host, may say more.",
            ],
            {"fatal": fatal, "innermost": innermost},
        )


def _place(frame: tuple[str, str, str]) -> str:
    function, path, line = frame
    return f"{function} ({path}{line and f':{line}'})"
