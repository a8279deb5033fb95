"""What the lines of load of a server show together: requests that wait, batches, graphs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tuner.diagnose.readers.benchmark import FEW_DRAFTS
from tuner.diagnose.readers.rates import Partners, Retractions, Stall, falls, prompts_alone
from tuner.diagnose.readers.reading import HANG_MARKS, HANGS, NUM, Reading, Whole, of_load
from tuner.engines.logs.workload import LoadLine, read_load

_MARKS = (
    *(b"Decodebatch", b"Avgprompt", b"Avggenerationthroughput", b"Draftacceptancerate"),
    *(b"Prefillbatch", b"Retractrequests", b"#retracted_reqs", *HANG_MARKS),
    *(b"KVcache", b"KVCache"),
)
# People's words: they wonder that little of it is used, or want more of it.
_ASKS_CACHE = re.compile(
    r"KV cache usage\b[^:]{1,30}\b(?:low|small|0 ?%)"
    r"|\b(?:increase|raise|enlarge) [^:]{0,20}KV cache",
    re.IGNORECASE,
)
# People's words: some GPUs are in full use, and others run nothing.
_UNEVEN = re.compile(r"GPUs?\b.{0,20}\b100 ?%.{0,60}\bGPUs?\b.{0,20}\b0 ?%", re.IGNORECASE)
_LITTLE = 0.5  # of the KV cache
# sglang's line of decode; vLLM's line of its own, in percent.
_ACCEPTED = re.compile(
    rf"accept len: (?P<tokens>{NUM}), accept rate: (?P<rate>{NUM})"
    rf"|Mean acceptance length: (?P<mean>{NUM}),"
    rf".*Draft acceptance rate: (?P<percent>{NUM})%"
)
_FEW_RUN = 3  # requests at once, for which a server is mostly idle
_SLOW = 3  # tokens/s of one of a few requests, which the memory of few GPUs explains
_FEW_SLOW = 16  # requests, which one step serves about as fast as one
_ALIKE = 3  # the most that the fastest of such lines may be, over the slowest
_FULL = 0.9  # of the KV cache
_GROWS = 0.1  # of the KV cache, from the first line to the last
_PROMPT_TOKENS = 512  # of a batch of prefill that keeps a GPU busy
_LEAST_LINES = 2
_MOST_KEPT = 10_000
_CAPTURED = 8  # requests for which every server has graphs, if it has any
_MOST = 0.8  # of the lines that have to agree
_PROMPTS = re.compile(rf"Avg prompt throughput: ({NUM}) tokens/s")  # of vLLM
_REUSED = re.compile(r"#new-seq: (\d{1,6}), #new-token: (\d{1,9}), #cached-token: (\d{1,12}),")
_REUSE = 0.02  # of a prompt's tokens; all others come from the cache
_ENDED = re.compile(rf"Avg generation throughput: ({NUM}) tokens/s, Running: 0 reqs")  # of vLLM
# People's words: another model or server uses these GPUs too.
_SHARES = re.compile(
    r"\b(?:two|2|three|3|several|multiple|both) (?:models|servers|instances|vllms?)\b"
    r"|(?:两|二|三|多|2|3) ?个(?:模型|服务|实例)",
    re.IGNORECASE,
)
_SHARE_MARKS = (
    *(b"--enable-lora", b"--lora-paths", b"100%"),
    *(b"models", b"servers", b"instances", b"vllms"),
    *("个模型".encode(), "个服务".encode(), "个实例".encode()),
)
_EAGER = re.compile(r"cuda graph: False")
_PREFILL = re.compile(
    r"Prefill batch\b.*?#new-seq: ([1-9]\d{0,6}), #new-token: (?P<new>\d{1,9}),"
    r".*?token usage: (?P<used>\d{1,3}\.?\d{0,5}),.*?"
    r"#running-req: (?P<running>\d{1,7}), #queue-req: (?P<waiting>[1-9]\d{0,6})"
)


@dataclass
class LoadReader:
    """Counts lines of load."""

    opens: Sequence[bytes] = _MARKS
    marks: Sequence[bytes] = (*_MARKS, *_SHARE_MARKS)
    _lines: int = 0
    _where: str = ""
    _engine: str = ""
    _held: Counter[int] = field(default_factory=Counter)  # requests that run while others wait
    _waiting: int = 0
    _no_room: int = 0  # lines in which others wait, and another one does not fit
    _still: int = 0  # lines with requests, and no token
    _used: float = 0.0  # of the KV cache, while others wait
    _running: Counter[int] = field(default_factory=Counter)
    _speeds: list[float] = field(default_factory=list)  # of lines with few requests
    # Of drafts: the accepted part, tokens for each step, FILE:LINE.
    _accepted: list[tuple[float, float, str]] = field(default_factory=list)
    _drafts: bool = False  # speculative decoding is on
    _eager: int = 0
    _decode: int = 0  # lines of sglang, which tell of graphs
    _prompts: list[int] = field(default_factory=list)  # new tokens of prefill, while others wait
    # vLLM's lines with prompts, and how many of their tokens were computed each second.
    _beside: list[tuple[LoadLine, float]] = field(default_factory=list)
    _old: bool = False  # they are of vLLM's first engine, V0
    # Of batches of prefill without a queue: requests, new tokens and tokens from the cache.
    _reused: list[tuple[int, int, int]] = field(default_factory=list)
    _hangs: bool = False  # somebody says so
    _asks_cache: bool = False
    _lora: bool = False  # the server has adapters
    _uneven: bool = False  # somebody says so of the GPUs' use
    _shares: bool = False  # somebody says that another model runs on these GPUs
    _ended: list[float] = field(default_factory=list)  # rates of lines in which no request runs
    _rests: bool = False  # a batch of prefill began with no request running
    _paused: int = 0  # lines of decode whose rate counts a pause
    _idle: int = 0  # lines without a request and without a token
    _full: int = 0  # lines with a full KV cache, which do not tell a queue
    _last: LoadLine | None = None
    _alone: int = 0  # last lines in which requests wait and none runs
    _stall: Stall = field(default_factory=Stall)
    _partners: Partners = field(default_factory=Partners)
    _retractions: Retractions = field(default_factory=Retractions)

    def read(self, line: str, where: str) -> None:
        self._drafts = self._drafts or "accept len: " in line
        if (
            "ccept" in line
            and (match := _ACCEPTED.search(line))
            and len(self._accepted) < _MOST_KEPT
        ):
            self._engine = "vllm" if match["mean"] else "sglang"
            rate = match["rate"] or float(match["percent"]) / 100
            self._accepted.append((float(rate), float(match["tokens"] or match["mean"]), where))
        prefill = "Prefill batch" in line
        if prefill and "#running-req: 0," in line:
            self._rests = True
        load = None if prefill else read_load(line)
        self._stall.prompt(line, prefill)
        self._partners.read(line, where)
        if load is None:
            self._read_other(line, where)
        if load and (load.running or load.waiting):
            self._last = load
            self._alone = 0 if load.running else self._alone + 1
            self._where = where
        if load is None or not load.running:
            self._read_ended(line, load, where)
            return
        self._stall.read(load, where)
        self._retractions.read(load)
        self._engine = "sglang" if "Decode batch" in line else "vllm"
        self._lines += 1
        self._where = where
        self._running[load.running] += 1
        if "cuda graph: " in line:
            self._decode += 1
            self._eager += bool(_EAGER.search(line))
        prompt = _PROMPTS.search(line)
        if prompt and (rate := float(prompt[1])) and len(self._beside) < _MOST_KEPT:
            self._beside.append((load, rate))
            self._old = "Swapped: " in line
        self._still += load.speed == 0 and not (prompt and float(prompt[1]))
        self._full += load.waiting is None and (load.used or 0) >= _FULL
        if load.waiting and load.used is not None and load.used < _FULL:
            self._hold(load.running, load.waiting, load.used)
        # sglang's rate is since the line before: the first one counts the pause before a request.
        paused, self._rests = self._rests and "Decode batch" in line, False
        self._paused += paused
        few = load.running <= _FEW_RUN and not paused
        if few and load.speed and len(self._speeds) < _MOST_KEPT:
            self._speeds.append(load.speed)

    def _read_ended(self, line: str, load: LoadLine | None, where: str) -> None:
        """Read a line of vLLM's in which no request runs."""
        if (match := _ENDED.search(line)) and load and not load.waiting:
            rate = float(match[1])
            self._ended += [rate] * (rate > 0 and len(self._ended) < _MOST_KEPT)
            self._idle += not rate
            self._old = "Swapped: " in line
            self._where, self._engine = where, "vllm"

    def _read_other(self, line: str, where: str) -> None:
        """Read a line that is none of decode or of statistics."""
        self._retractions.note(line, where)
        if "Prefill batch" not in line:
            self._hangs = self._hangs or bool(HANGS.search(line))
            self._asks_cache = self._asks_cache or bool(_ASKS_CACHE.search(line))
            self._shares = self._shares or bool(_SHARES.search(line))
            self._uneven = self._uneven or bool(_UNEVEN.search(line))
            self._lora = self._lora or "--enable-lora" in line or "--lora-paths" in line
        elif "#queue-req: 0" in line and (match := _REUSED.search(line)):
            batch = int(match[1]), int(match[2]), int(match[3])
            self._reused += [batch] * (len(self._reused) < _MOST_KEPT)
            self._where, self._engine = where, self._engine or "sglang"
        elif match := _PREFILL.search(line):
            running = int(match[1]) + int(match["running"])
            self._prompts += [int(match["new"])] * (len(self._prompts) < _MOST_KEPT)
            self._engine = self._engine or "sglang"
            self._where = where
            self._lines += 1
            self._running[running] += 1
            if float(match["used"]) < _FULL:
                self._hold(running, int(match["waiting"]), float(match["used"]))

    def _hold(self, running: int, waiting: int, used: float) -> None:
        """Keep that others wait, and whether another request of the mean size has room."""
        fits = used * (running + 1) / running < _FULL
        self._no_room += not fits
        self._held[running] += fits
        self._waiting = max(self._waiting, waiting)
        self._used = max(self._used, used)

    def told(self, whole: Whole) -> Iterator[Reading]:
        """What the lines show, most of it if there are at least two. Beside a server that stops,
        only what may have to do with that.
        """
        told = [*self._rejected(), *self._retractions.told(), *self._partners.told()]
        stands = [*self._none_runs(), *self._stands_still(), *self._stall.told(self._engine)]
        if whole.stops or whole.failed:
            yield from told + stands
            return
        told += stands
        held = [*self._held_back()] if self._lines else []
        told += held
        if self._lines >= _LEAST_LINES:
            told += [*self._too_large(), *self._without_graphs()]
            told += [] if told else [*self._prefill_waits()] or [*self._prompts_first()]
            told = told or [*prompts_alone(self._beside, self._lines, self._where)]
        told += [] if stands or held else self._goes_on()
        told = told or [*self._cache_unused()] or [*self._cache_held()]
        told = told or [*self._prompts_reused()]
        others = any(one.name != "drafts_rejected" for one in told)
        if self._lines >= _LEAST_LINES and not others and "vllm_on_cpu" not in whole.names:
            told += [*self._slow()] or [*self._few_at_once()]
        told = told or [*falls(self._stall.lines, self._engine)]
        told = told or [*self._steps()] or [*self._between()]
        # These say that nothing is wrong but speed, if that.
        asked = ("few_requests", "load_steps", "cache_unused", "requests_ended")
        yield from (one for one in told if not whole.trouble or one.name not in asked)

    def _of(self, name: str, values: Mapping[str, Any], *when: str) -> Reading:
        return of_load(name, self._where, self._engine, values, *when)

    def _rejected(self) -> Iterator[Reading]:
        """Drafts of speculative decoding that the model rejects."""
        if len(self._accepted) < _LEAST_LINES:
            return
        rate, tokens, where = sorted(self._accepted)[len(self._accepted) // 2]
        if rate < FEW_DRAFTS:
            lines = len(self._accepted)
            values = {
                "rate": rate,
                "tokens_per_step": tokens,
                "lines": lines,
                "percent": 100 * rate,
            }
            by = f"median of {lines} lines"
            yield of_load("drafts_rejected", where, self._engine, {**values, "by": by})

    def _waits(self, running: int) -> Mapping[str, Any]:
        return {
            **{"running": running, "waiting": self._waiting, "percent": 100 * self._used},
            "kv_cache_used": round(self._used, 3),
        }

    def _held_back(self) -> Iterator[Reading]:
        """Requests that wait although the KV cache has room."""
        (most, times), *_ = self._held.most_common(1) or [(0, 0)]
        least = 1 if self._hangs else _LEAST_LINES
        if times < least or self._held.total() < _MOST * self._lines:
            return
        if times >= _MOST * self._held.total() and most >= max(self._running):
            yield self._of("requests_held", self._waits(most), *(["lora"] * self._lora))

    def _too_large(self) -> Iterator[Reading]:
        """Requests that wait because another one of the same size does not fit."""
        if self._no_room >= max(_LEAST_LINES, _MOST * self._lines):
            values = self._waits(max(self._running))
            alone = max(self._running) == 1 and self._used >= _LITTLE
            yield self._of("requests_large", values, *(["alone"] * alone))

    def _prefill_waits(self) -> Iterator[Reading]:
        """Prompts that wait for others, while more and more requests run."""
        lines, running = len(self._prompts), list(self._running)
        rises = len(running) > _LEAST_LINES and running == sorted(running)
        rises = rises and max(self._prompts, default=0) >= _PROMPT_TOKENS  # fewer take no time
        if rises and not self._hangs and lines >= _MOST * self._lines and self._used < _FULL:
            values = {"lines": lines, "most": max(self._prompts)}
            yield self._of("prompts_wait", {**self._waits(running[-1]), **values})

    def _prompts_first(self) -> Iterator[Reading]:
        """vLLM's lines in which prompts are computed, and running requests get few tokens."""
        slow = [load for load, prompt in self._beside if 10 * (load.speed or 0) < prompt]
        waiting = max((load.waiting or 0 for load, _ in self._beside), default=0)
        full = any((load.used or 0) >= _FULL for load, _ in self._beside)
        if len(slow) < max(_LEAST_LINES, self._lines / 2) or not waiting or full:
            return
        values = {
            **{"lines": len(slow), "all": self._lines, "waiting": waiting},
            "prompt": median(prompt for _, prompt in self._beside),
            "each": max((load.speed or 0) / load.running for load in slow),
        }
        yield self._of("prompts_first", values, *(["old"] * self._old))

    def _none_runs(self) -> Iterator[Reading]:
        """Requests that wait although none runs."""
        if self._alone >= (1 if self._hangs else _LEAST_LINES) and self._last:
            values = {"lines": self._alone, "waiting": self._last.waiting}
            yield self._of("none_runs", values)

    def _stands_still(self) -> Iterator[Reading]:
        """Requests that run and get no token."""
        if self._lines < _LEAST_LINES:
            return
        last = self._hangs and self._last and self._last.speed == 0
        if self._still >= (1 if last else _LEAST_LINES):
            values = {"lines": self._lines, "without_tokens": self._still}
            yield self._of("no_tokens", values)

    def _without_graphs(self) -> Iterator[Reading]:
        most = max(self._running)
        if self._decode >= _LEAST_LINES and self._eager >= _MOST * self._decode:
            values = {"lines": self._decode, "without": self._eager, "running": most}
            yield self._of("decode_without_graphs", values, *(["large"] * (most > _CAPTURED)))

    def _few_at_once(self) -> Iterator[Reading]:
        most = max(self._running)
        if most > _FEW_RUN or self._waiting or len(self._speeds) < _LEAST_LINES:
            return
        speeds = sorted(self._speeds)
        used = [100 * (load.used or 0) for load, _ in self._stall.lines]
        if speeds[-1] > _ALIKE * speeds[0] or max(used) >= 100 * _FULL:
            return  # something else than the number of requests slows the server at times
        values = {
            **{"running": most, "tokens_per_s": speeds[len(speeds) // 2], "lines": len(speeds)},
            **{"first": used[0], "last": used[-1]},
            "who": "one request runs" if most == 1 else f"at most {most} requests run",
            "gets": "It gets" if most == 1 else "Together they get",
        }
        values |= {"still": self._still} if self._still else {}
        values |= {"paused": self._paused} if self._paused else {}
        grows = most == 1 and used[-1] > used[0]
        when = ["grows"] * grows + ["shares"] * self._shares
        yield self._of("few_requests", values, *when)

    def _slow(self) -> Iterator[Reading]:
        """Requests that are slower than their number explains, in all lines."""
        loads = [load for load, _ in self._stall.lines]
        each = max((load.speed or 0) / load.running for load in loads) if loads else 0
        if not each or each >= _SLOW or max(self._running) > _FEW_SLOW:
            return
        if not any(load.waiting for load in loads):
            used = max(load.used or 0 for load in loads)
            values = {
                **{"running": max(self._running), "each": each, "percent": 100 * used},
                "tokens_per_s": max(load.speed or 0 for load in loads),
            }
            yield self._of("decode_slow", values, *(["full"] * (used >= _FULL)))

    def _goes_on(self) -> Iterator[Reading]:
        """Somebody says that it hangs, and the lines show tokens until the last one."""
        if self._hangs and self._last and self._last.speed:
            used = self._last.used or 0
            values = {"running": self._last.running, "tokens_per_s": self._last.speed}
            few = "room" if self._last.running <= _FEW_RUN else "many"
            when = "uneven" if self._uneven else "full" if used >= _FULL else few
            first = next((load.used or 0 for load, _ in self._stall.lines), used)
            grows = when == "many" and used - first >= _GROWS
            values |= {"percent": 100 * used, "first": 100 * first}
            yield self._of("tokens_come", values, when, *(["grows"] * grows))

    def _between(self) -> Iterator[Reading]:
        """Requests that began and ended between two lines, in a text without any that runs."""
        if self._lines or self._last:
            return
        if self._ended:
            seconds = 5 if self._old else 10  # between two lines, if nobody set it otherwise
            values = {"rate": max(self._ended), "tokens": seconds * max(self._ended)}
            values |= {"lines": len(self._ended), "seconds": seconds}
            yield self._of("requests_ended", values)
        elif self._hangs and self._idle >= _LEAST_LINES:
            yield self._of("none_asks", {"lines": self._idle})

    def _cache_unused(self) -> Iterator[Reading]:
        """Somebody asks for use of the KV cache, and no request waits for it."""
        last = self._last
        if self._asks_cache and last and last.running and (last.used or 0) < _LITTLE:
            values = {"running": last.running, "percent": 100 * (last.used or 0)}
            yield from [] if last.waiting else [self._of("cache_unused", values)]

    def _cache_held(self) -> Iterator[Reading]:
        """A KV cache that is full in all lines, which do not say how many requests wait."""
        if self._lines >= _LEAST_LINES and self._full >= _MOST * self._lines and self._last:
            values = {"running": self._last.running, "percent": 100 * (self._last.used or 0)}
            yield self._of("cache_held", values)

    def _prompts_reused(self) -> Iterator[Reading]:
        """Prompts that come from the cache of prefixes, in a text without lines of decode."""
        whole = [one for one in self._reused if one[1] <= _REUSE * one[2]]
        if self._lines or len(whole) < max(_LEAST_LINES, _MOST * len(self._reused)):
            return
        requests, new, cached = map(sum, zip(*whole, strict=True))
        values = {"requests": requests, "new": new, "cached": cached, "each": cached / requests}
        yield self._of("prompts_reused", values)

    def _steps(self) -> Iterator[Reading]:
        """What a step takes, where neither a queue nor the cache holds requests back."""
        loads = [load for load, _ in self._stall.lines]
        speeds = [load.speed or 0 for load in loads]
        if len(loads) <= _LEAST_LINES or any(load.waiting for load in loads) or not min(speeds):
            return
        if self._drafts:  # a step makes more than one token for each
            return
        running = median(load.running for load in loads)
        used = max(load.used or 0 for load in loads)
        if running <= _FEW_RUN or max(speeds) > _ALIKE * min(speeds) or used >= _FULL:
            return
        each = median((load.speed or 0) / load.running for load in loads)
        values = {
            **{"running": running, "tokens_per_s": median(speeds), "lines": len(loads)},
            **{"each": each, "ms": 1000 / each, "percent": 100 * used},
        }
        yield self._of("load_steps", values)
