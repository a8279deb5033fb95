"""Whether two servers answer alike, compared with how far one server differs from itself.

A kernel adds its products in an order that depends on its configuration and on the batch, so the
log-probabilities of two correct servers differ a little, and so do those of one server for a prompt
alone and in a batch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from benchmarks.served.loads import ask
from benchmarks.served.server import Answer, Server
from tuner.errors import ServerUnavailable

PROMPTS, PROMPT_TOKENS, TOKENS = 8, 256, 16
# Logits between 4 and 8 are 1/32 apart in bfloat16.
_STEP = 1 / 32
_TIMES_OWN = 2.0
_LARGEST = 8  # a single token may differ so many times as much as the mean


@dataclass(frozen=True)
class Answers:
    """One server's answers to the same prompts."""

    single: Sequence[Answer]  # one after the other
    batched: Sequence[Answer]  # all at once


@dataclass(frozen=True)
class OutputCheck:
    """Differences are of natural log-probabilities."""

    mean: float  # between the servers
    largest: float
    own_mean: float  # of one server, between single and batched
    own_largest: float
    equal_tokens: int  # greedy tokens until the first that differs, of all prompts
    tokens: int

    @property
    def allowed(self) -> tuple[float, float]:
        """The mean and the largest difference that are no fault."""
        mean = max(_TIMES_OWN * self.own_mean, _STEP)
        return mean, max(_TIMES_OWN * self.own_largest, _LARGEST * mean)

    @property
    def ok(self) -> bool:
        """Whether the servers answer alike. False where an answer is not a number."""
        mean, largest = self.allowed
        return self.mean <= mean and self.largest <= largest

    def as_json(self) -> dict[str, Any]:
        # JSON has no word for what is not a number.
        numbers = {k: v if math.isfinite(v) else None for k, v in asdict(self).items()}
        return {"ok": self.ok, **numbers}


def outputs_text(check: Mapping[str, Any]) -> str:
    """The lines of a check's JSON."""
    if check["mean"] is None:
        return "outputs: DIFFERENT: an answer holds what is no number, or lacks tokens"
    return (
        f"outputs: {'alike' if check['ok'] else 'DIFFERENT'}\n"
        f"  log-probabilities differ by {check['mean']:.3g} on average, and by "
        f"{check['own_mean']:.3g} in one\n"
        "  server, between single and batched prompts\n"
        f"  greedy tokens agree in {check['equal_tokens']} of {check['tokens']}, up to the first "
        "that differs"
    )


def answers_of(server: Server, port: int, timeout_s: float) -> Answers:
    """Ask a server for greedy answers, each prompt alone and all at once.

    Raises ServerUnavailable.
    """
    draw = random.Random(0)  # noqa: S311 (no secret)
    prompts = [draw.choices(range(100, 10_000), k=PROMPT_TOKENS) for _ in range(PROMPTS)]

    def answer(prompt: Sequence[int]) -> Answer:
        body = ask(port, server.greedy(prompt, TOKENS), timeout_s)
        try:
            return server.answer(body)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, StopIteration):
            raise ServerUnavailable(
                f"the server answered without log-probabilities: {str(body)[:300]}"
            ) from None

    single = [answer(prompt) for prompt in prompts]
    with ThreadPoolExecutor(PROMPTS) as pool:
        return Answers(single, list(pool.map(answer, prompts)))


def check_outputs(before: Answers, after: Answers) -> OutputCheck:
    """Compare two servers' answers to the same prompts."""
    own = [
        difference
        for side in (before, after)
        for difference in _differences(side.single, side.batched)
    ]
    between = [
        difference
        for old, new in ((before.single, after.single), (before.batched, after.batched))
        for difference in _differences(old, new)
    ]
    equal = [_equal(old, new) for old, new in zip(before.single, after.single, strict=True)]
    return OutputCheck(
        *_mean_and_largest(between), *_mean_and_largest(own), sum(equal), TOKENS * len(equal)
    )


def _mean_and_largest(values: Sequence[float]) -> tuple[float, float]:
    if not values or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return sum(values) / len(values), max(values)


def _differences(old: Iterable[Answer], new: Iterable[Answer]) -> list[float]:
    """How far log-probabilities differ: for the prompts' tokens, and for chosen tokens up to the
    first that differs.

    Where two tokens are nearly as likely, either may be chosen; then both are nearly as likely in
    both servers, so that token counts too.
    """
    found: list[float] = []
    for a, b in zip(old, new, strict=True):
        if len(a.prompt) != len(b.prompt):
            return [math.nan]
        found += [abs(x - y) for x, y in zip(a.prompt, b.prompt, strict=True)]
        chosen = zip(a.chosen, b.chosen, strict=False)
        found += [abs(x - y) for x, y in list(chosen)[: _equal(a, b) + 1]]
    return found


def _equal(a: Answer, b: Answer) -> int:
    pairs = zip(a.tokens, b.tokens, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
