"""What the lines of load of a server show together: requests that wait, batches, graphs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from tuner.diagnose.readers.rates import Partners, Retractions, Stall
from tuner.diagnose.readers.reading import HANG_MARKS, HANGS, Reading, Whole
from tuner.diagnose.table import Kind
from tuner.profile.workload import LoadLine, read_load

_MARKS = (
    *(b"Decodebatch", b"Avggenerationthroughput", b"Draftacceptancerate"),
    *(b"Prefillbatch", b"Retractrequests", b"#retracted_reqs", *HANG_MARKS),
)
# sglang's line of decode; vLLM's line of its own, in percent.
_ACCEPTED = re.compile(
    r"accept len: (?P<tokens>[\d.]{1,9}), accept rate: (?P<rate>[\d.]{1,9})"
    r"|Mean acceptance length: (?P<mean>[\d.]{1,9}),"
    r".*Draft acceptance rate: (?P<percent>[\d.]{1,9})%"
)
_FEW = 0.4  # of the drafts: most are thrown away
_FEW_RUN = 3  # requests at once, for which a server is mostly idle
_SLOW = 3  # tokens/s of a request, which the memory of few GPUs explains
_ALIKE = 3  # the most that the fastest of such lines may be, over the slowest
_FULL = 0.9  # of the KV cache
_LEAST_LINES = 2
_MOST_KEPT = 10_000
_CAPTURED = 8  # requests for which every server has graphs, if it has any
_MOST = 0.8  # of the lines that have to agree
# Of a decode that is much slower than the memory of a GPU explains.
_REASONS = (
    "The usual reasons: weights in the host's memory (--cpu-offload-gb), ranks that "
    "talk over TCP between nodes (NCCL_DEBUG=INFO shows NET/Socket), another program "
    "on the GPU, low clocks, few CPU cores for the server, or an all-reduce of the engine's own "
    "over PCIe (start once with --disable-custom-all-reduce). Look while it decodes:",
    "$ nvidia-smi -q -d UTILIZATION,CLOCK,PERFORMANCE",
    "$ py-spy dump --pid PID",
)
_EAGER = re.compile(r"cuda graph: False")
_PREFILL = re.compile(
    r"Prefill batch\b.*?#new-seq: (\d{1,7}),.*?token usage: ([\d.]{1,9}),.*?"
    r"#running-req: (\d{1,7}), #queue-req: ([1-9]\d{0,6})"
)


@dataclass
class LoadReader:
    """Counts lines of load."""

    opens: Sequence[bytes] = _MARKS
    marks: Sequence[bytes] = _MARKS
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
    _eager: int = 0
    _decode: int = 0  # lines of sglang, which tell of graphs
    _hangs: bool = False  # somebody says so
    _last: LoadLine | None = None
    _stall: Stall = field(default_factory=Stall)
    _partners: Partners = field(default_factory=Partners)
    _retractions: Retractions = field(default_factory=Retractions)

    def read(self, line: str, where: str) -> None:
        if (match := _ACCEPTED.search(line)) and len(self._accepted) < _MOST_KEPT:
            self._engine = "vllm" if match["mean"] else "sglang"
            rate = match["rate"] or float(match["percent"]) / 100
            self._accepted.append((float(rate), float(match["tokens"] or match["mean"]), where))
        load = read_load(line)
        self._stall.prompt(line)
        self._partners.read(line, where)
        if load is None:
            self._read_other(line, where)
        if load is None or not load.running:
            return
        self._last = load
        self._stall.read(load, where)
        self._retractions.read(load)
        self._engine = "sglang" if "Decode batch" in line else "vllm"
        self._lines += 1
        self._where = where
        self._running[load.running] += 1
        if "cuda graph: " in line:
            self._decode += 1
            self._eager += bool(_EAGER.search(line))
        self._still += load.speed == 0
        if load.waiting and load.used is not None and load.used < _FULL:
            self._hold(load.running, load.waiting, load.used)
        if load.running <= _FEW_RUN and load.speed and len(self._speeds) < _MOST_KEPT:
            self._speeds.append(load.speed)

    def _read_other(self, line: str, where: str) -> None:
        """Read a line that is none of decode or of statistics."""
        self._retractions.note(line, where)
        self._hangs = self._hangs or bool(HANGS.search(line))
        if match := _PREFILL.search(line):
            running = int(match[1]) + int(match[3])
            self._engine = self._engine or "sglang"
            self._where = where
            self._lines += 1
            self._running[running] += 1
            if float(match[2].rstrip(".") or 1) < _FULL:
                self._hold(running, int(match[4]), float(match[2].rstrip(".")))

    def _hold(self, running: int, waiting: int, used: float) -> None:
        """Keep that others wait, and whether another request of the mean size has room."""
        fits = used * (running + 1) / running < _FULL
        self._no_room += not fits
        self._held[running] += fits
        self._waiting = max(self._waiting, waiting)
        self._used = max(self._used, used)

    def told(self, whole: Whole) -> Iterator[Reading]:
        """What the lines show, if there are at least two."""
        told = [*self._rejected(), *self._retractions.told(), *self._partners.told()]
        if self._lines >= _LEAST_LINES:
            stands = [*self._stands_still(), *self._stall.told(self._engine)]
            told += [*stands, *self._held_back(), *self._too_large(), *self._without_graphs()]
            told += [] if stands else self._goes_on()
            if (
                all(one.name == "drafts_rejected" for one in told)
                and "vllm_on_cpu" not in whole.names
            ):
                told += self._few_at_once()
        yield from told or self._steps()

    def _rejected(self) -> Iterator[Reading]:
        """Drafts of speculative decoding that the model rejects."""
        if len(self._accepted) < _LEAST_LINES:
            return
        rate, tokens, where = sorted(self._accepted)[len(self._accepted) // 2]
        if rate >= _FEW:
            return
        yield Reading(
            "drafts_rejected",
            Kind.SLOW,
            "few drafts of speculative decoding are accepted",
            where,
            [
                f"{100 * rate:.0f} % are (median of {len(self._accepted)} lines), {tokens:.2f} "
                "tokens for each step of the model. Each draft costs time, most of all with many "
                "requests at once."
            ],
            [
                "Compare with a server without speculative decoding, at the load of your users.",
                "sglang: Or draft fewer: --speculative-num-steps, --speculative-num-draft-tokens.",
                "vLLM: Or draft fewer: num_speculative_tokens in --speculative-config.",
                "Random tokens of a benchmark are accepted more seldom than text: measure with "
                "prompts like those of your users.",
            ],
            {"rate": rate, "tokens_per_step": tokens, "lines": len(self._accepted)},
            self._engine,
        )

    def _held_back(self) -> Iterator[Reading]:
        """Requests that wait although the KV cache has room."""
        (most, times), *_ = self._held.most_common(1) or [(0, 0)]
        if times < _LEAST_LINES or self._held.total() < _MOST * self._lines:
            return
        if times < _MOST * self._held.total() or most < max(self._running):
            return
        yield Reading(
            "requests_held",
            Kind.SLOW,
            "requests wait although the KV cache has room",
            self._where,
            [
                f"{most} requests run, up to {self._waiting} wait, and at most "
                f"{100 * self._used:.0f} % of the KV cache is used: a limit on how many run at "
                "once holds the others back, and neither the cache nor a kernel."
            ],
            [
                f"vLLM: Raise --max-num-seqs, if it is {most}. With more at once each request gets "
                "its tokens more slowly, and all together faster.",
                f"sglang: Raise --max-running-requests, if it is {most}; for hybrid models "
                "--max-mamba-cache-size limits it too. With more at once each request gets its "
                "tokens more slowly, and all together faster. With speculative decoding sglang "
                "sets a small limit itself, if none is given.",
            ],
            {"running": most, "waiting": self._waiting, "kv_cache_used": round(self._used, 3)},
            self._engine,
        )

    def _too_large(self) -> Iterator[Reading]:
        """Requests that wait because another one of the same size does not fit."""
        if self._no_room < max(_LEAST_LINES, _MOST * self._lines):
            return
        most = max(self._running)
        yield Reading(
            "requests_large",
            Kind.SLOW,
            "requests wait: the KV cache has no room for another one of the same size",
            self._where,
            [
                f"Up to {self._waiting} wait while {most} or fewer run and up to "
                f"{100 * self._used:.0f} % of the KV cache is used. The cache and the length of "
                "their answers set the pace, and not a kernel's constants."
            ],
            [
                "Make the cache larger: more GPUs (tp), weights or KV cache in fewer bits.",
                "vLLM: Or raise --gpu-memory-utilization, or keep requests shorter with "
                "--max-model-len and a limit of tokens for answers.",
                "sglang: Or raise --mem-fraction-static, or keep requests shorter with "
                "--context-length and a limit of tokens for answers.",
            ],
            {"running": most, "waiting": self._waiting, "kv_cache_used": round(self._used, 3)},
            self._engine,
        )

    def _stands_still(self) -> Iterator[Reading]:
        """Requests that run and get no token."""
        last = self._hangs and self._last and self._last.speed == 0
        if self._still < (1 if last else _LEAST_LINES):
            return
        yield Reading(
            "no_tokens",
            Kind.WAITS,
            "requests run and get no token",
            self._where,
            [
                f"{self._still} of {self._lines} lines say 0 tokens/s while requests run. A long "
                "prompt does that for a while, or a kernel that is compiled; if it stays so, a "
                "kernel or a collective does not end."
            ],
            [
                "Look at the GPUs: 100 % of use that does not end is a kernel that waits, 0 % is a "
                "process that waits:",
                "$ nvidia-smi",
                "Take the stack of each process of the server, and give these to `tuner diagnose`:",
                "$ py-spy dump --pid PID",
                "See whether the kernel's log names a fault of a GPU: `dmesg | grep -i xid`.",
                "If it comes with structured output alone (JSON, a grammar, tools), try the same "
                "request without: the grammar's library, on the CPU, may not come to an end.",
            ],
            {"lines": self._lines, "without_tokens": self._still},
            self._engine,
        )

    def _without_graphs(self) -> Iterator[Reading]:
        if self._decode < _LEAST_LINES or self._eager < _MOST * self._decode:
            return
        most = max(self._running)
        fix = ["sglang: Leave --disable-cuda-graph out, if it is there."]
        if most > _CAPTURED:
            fix.append(
                "sglang: Else the batches are larger than the graphs, of which the log tells at "
                f"its start: give --cuda-graph-max-bs {most} or more (0.5.23: "
                "--cuda-graph-max-bs-decode)."
            )
        yield Reading(
            "decode_without_graphs",
            Kind.SLOW,
            "decode runs without CUDA graphs",
            self._where,
            [
                f"{self._eager} of {self._decode} lines of decode say `cuda graph: False`; at most "
                f"{most} requests ran. Without a graph the host launches each kernel singly, and "
                "with few requests the GPU waits for it."
            ],
            fix,
            {"lines": self._decode, "without": self._eager, "running": most},
            self._engine,
        )

    def _few_at_once(self) -> Iterator[Reading]:
        most = max(self._running)
        if most > _FEW_RUN or self._waiting or len(self._speeds) < _LEAST_LINES:
            return
        speeds = sorted(self._speeds)
        if speeds[-1] > _ALIKE * speeds[0]:
            return  # something else than the number of requests slows the server at times
        middle = speeds[len(speeds) // 2]
        if speeds[-1] < _SLOW:
            yield self._slow_from_the_start(most, speeds[-1])
            return
        many = "one request runs" if most == 1 else f"at most {most} requests run"
        gets = "It gets" if most == 1 else "Together they get"
        out = (
            "out, if it is there: with few requests the GPU waits for the host, and CUDA graphs "
            "spare most of that."
        )
        yield Reading(
            "few_requests",
            Kind.NOTE,
            f"{many} at a time",
            self._where,
            [
                f"{gets} {middle:,.1f} tokens/s (median of {len(speeds)} lines), and none waits: "
                "whoever asks sends no more at once. So few requests read all active weights for "
                "each token, so the memory's bandwidth or the host bounds them; many at once share "
                "that, and together get many times as many tokens.",
                *self._grows(most),
            ],
            [
                "Send as many requests at once as users will, and compare.",
                f"vLLM: Leave --enforce-eager {out}",
                f"sglang: Leave --disable-cuda-graph {out}",
            ],
            {"running": most, "tokens_per_s": middle, "lines": len(speeds)},
            self._engine,
        )

    def _grows(self, most: int) -> Iterator[str]:
        """That one answer goes on, which people take for a leak of the cache."""
        used = [load.used or 0 for load, _ in self._stall.lines]
        if most == 1 and used[-1] > used[0]:
            yield (
                f"The KV cache fills from {100 * used[0]:.1f} to {100 * used[-1]:.1f} % as its "
                "answer grows, until that ends or reaches its limit (max_tokens)."
            )

    def _slow_from_the_start(self, most: int, best: float) -> Reading:
        """Few requests, so slow that their number is not the reason."""
        return Reading(
            "decode_slow",
            Kind.SLOW,
            f"decode gives at most {best:.1f} tokens/s",
            self._where,
            [
                f"At most {most} {'request runs' if most == 1 else 'requests run'} at a time. For "
                "one token a GPU reads the active weights once: 70 GB take 0.02 s at 3.35 TB/s "
                "(H100), and 0.26 s at 0.27 TB/s (GB10). If yours should be much faster by this, "
                "something else takes the time.",
            ],
            [
                *_REASONS,
            ],
            {"running": most, "tokens_per_s": best},
            self._engine,
        )

    def _goes_on(self) -> Iterator[Reading]:
        """Somebody says that it hangs, and the lines show tokens until the last one."""
        if not self._hangs or self._last is None or not self._last.speed:
            return
        full = f"{100 * (self._last.used or 0):.0f} % full"
        yield Reading(
            "tokens_come",
            Kind.NOTE,
            "somebody says that it hangs, and these lines show tokens until the last one",
            self._where,
            [
                f"The last line of load says {self._last.speed:,.1f} tokens/s for "
                f"{self._last.running} running, and the KV cache is {full}. "
                + (
                    "So there is next to no room for the next tokens. If nothing follows, the "
                    "server does not get over that."
                    if (self._last.used or 0) >= _FULL
                    else "A request goes on until its answer ends or reaches its limit, which a "
                    "model that reasons or repeats itself may use up."
                )
            ],
            [
                "Limit the tokens of each answer: max_tokens in the request.",
                "If nothing comes after this text, take the stack of each process of the server:",
                "$ py-spy dump --pid PID",
            ],
            {"running": self._last.running, "tokens_per_s": self._last.speed},
            self._engine,
        )

    def _steps(self) -> Iterator[Reading]:
        """What a step takes, where neither a queue nor the cache holds requests back."""
        loads = [load for load, _ in self._stall.lines]
        speeds = [load.speed or 0 for load in loads]
        used = max((load.used or 0 for load in loads), default=1)
        if len(loads) <= _LEAST_LINES or any(load.waiting for load in loads):
            return
        running = median(load.running for load in loads)
        if running <= _FEW_RUN or max(speeds) > _ALIKE * min(speeds):
            return
        each = median(load.speed / load.running for load in loads if load.speed)
        growing = "A step takes longer as answers grow: each token reads the cache of its request."
        if used >= _FULL:
            growing = (
                "The cache is nearly full: if answers grow on, requests lose their place in it."
            )
        yield Reading(
            "load_steps",
            Kind.NOTE,
            "no request waits in these lines: the time of a step is what they take",
            self._where,
            [
                f"{running:.0f} requests run (median of {len(loads)} lines) and get "
                f"{median(speeds):,.0f} tokens/s together, {each:,.1f} each: a step of "
                f"{1000 / each:,.0f} ms, if it makes one token for each (without speculative "
                f"decoding). None waits, and at most {100 * used:.0f} % of the cache is used.",
                growing,
            ],
            [
                *(_REASONS if each < _SLOW else ()),
                "To see where a step's time goes, record a trace of torch's profiler while the "
                "server runs so, and give it to `tuner profile`.",
            ],
            {"running": running, "tokens_per_s": median(speeds), "each": each},
            self._engine,
        )
