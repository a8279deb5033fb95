"""Send one load to a server, and say how fast it was."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from tuner.deploy.served.client import Arrival, stream
from tuner.deploy.served.loads import Load
from tuner.engines.server import Server
from tuner.errors import ServerUnavailable


@dataclass(frozen=True)
class Speed:
    """What one run of a load showed. Times are medians over its sequences, in milliseconds."""

    prefill_tok_s: float  # prompt tokens, until the last sequence has its first token
    ttft_ms: float  # until the first token
    # None where no token was answered after the last sequence's first one.
    decode_tok_s: float | None  # while all sequences are answered at once
    tpot_ms: float | None  # between two tokens of a sequence
    total_s: float  # until the last token of all


def run_load(server: Server, port: int, load: Load, key: object, timeout_s: float) -> Speed:
    """Send all sequences of a load at once. Equal keys send equal prompts.

    Raises ServerUnavailable where an answer does not come, or not with all tokens.
    """
    posts = [server.stream(prompt, load.answer) for prompt in load.prompts(key)]
    with ThreadPoolExecutor(load.sequences) as pool:
        begun_s = time.perf_counter()
        asked = [pool.submit(stream, server, port, post, timeout_s) for post in posts]
        answers = [one.result() for one in asked]
    for answer in answers:
        tokens = answer[-1].tokens if answer else 0
        if tokens != load.answer:
            raise ServerUnavailable(
                f"load {load}: the server answered {tokens} of {load.answer} tokens: choose a load "
                "that its context length and memory allow"
            )
    return speed_of(load, begun_s, answers)


def speed_of(load: Load, begun_s: float, answers: Sequence[Sequence[Arrival]]) -> Speed:
    """The speed of a load whose answers arrived so; `begun_s` is when it was sent."""
    firsts = [answer[0].at_s for answer in answers]
    prompt_tokens = load.sequences * load.prompt
    gaps_ms = [gap for answer in answers if (gap := _tpot_ms(answer)) is not None]
    return Speed(
        prefill_tok_s=prompt_tokens / (max(firsts) - begun_s),
        ttft_ms=1e3 * (median(firsts) - begun_s),
        decode_tok_s=_decode_tok_s(answers),
        tpot_ms=median(gaps_ms) if gaps_ms else None,
        total_s=max(answer[-1].at_s for answer in answers) - begun_s,
    )


def median_speed(speeds: Sequence[Speed]) -> Speed:
    """The median of each figure over runs of a load; a run without the figure does not count."""
    decode = [speed.decode_tok_s for speed in speeds if speed.decode_tok_s is not None]
    tpot = [speed.tpot_ms for speed in speeds if speed.tpot_ms is not None]
    return Speed(
        prefill_tok_s=median(speed.prefill_tok_s for speed in speeds),
        ttft_ms=median(speed.ttft_ms for speed in speeds),
        decode_tok_s=median(decode) if decode else None,
        tpot_ms=median(tpot) if tpot else None,
        total_s=median(speed.total_s for speed in speeds),
    )


def _decode_tok_s(answers: Sequence[Sequence[Arrival]]) -> float | None:
    """Tokens a second between the last first token and the first last token."""
    begin_s = max(answer[0].at_s for answer in answers)
    end_s = min(answer[-1].at_s for answer in answers)
    tokens = sum(_arrived(answer, end_s) - _arrived(answer, begin_s) for answer in answers)
    return tokens / (end_s - begin_s) if end_s > begin_s and tokens else None


def _arrived(answer: Sequence[Arrival], at_s: float) -> int:
    """How many tokens had arrived at a time, which is not before the first one."""
    return answer[bisect_right(answer, at_s, key=lambda one: one.at_s) - 1].tokens


def _tpot_ms(answer: Sequence[Arrival]) -> float | None:
    first, last = answer[0], answer[-1]
    tokens = last.tokens - first.tokens
    return 1e3 * (last.at_s - first.at_s) / tokens if tokens else None
