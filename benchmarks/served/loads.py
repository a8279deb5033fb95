"""The loads of a comparison: so many sequences at once. Send them, and time the server."""

from __future__ import annotations

import http.client
import json
import random
import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.served.server import Post, Server
from tuner.errors import BadInput, ServerUnavailable

BEFORE, AFTER = "before", "after"  # the servers without and with the files
SIDES = (BEFORE, AFTER)
_LOAD = re.compile(r"(\d{1,5})x(\d{1,7})\+(\d{1,6})")
# Every model's vocabulary has these tokens, and few of them are special.
_TOKENS = range(100, 10_000)


@dataclass(frozen=True)
class Load:
    """Sequences that are sent at once, with the tokens of each prompt and of each answer."""

    sequences: int
    prompt: int
    answer: int

    def __str__(self) -> str:
        return f"{self.sequences}x{self.prompt}+{self.answer}"

    def prompts(self, key: object) -> list[list[int]]:
        """Random prompts, equal for equal keys, no two of which begin alike."""
        draw = random.Random(f"{self} {key}")  # noqa: S311 (no secret)
        return [draw.choices(_TOKENS, k=self.prompt) for _ in range(self.sequences)]


def parse_loads(text: str) -> list[Load]:
    """Read "1x1024+128,8x8192+32". Raises BadInput, which names the word that is no load."""
    loads = []
    for word in text.split(","):
        match = _LOAD.fullmatch(word.strip())
        if match is None or not all(int(number) for number in match.groups()):
            raise BadInput(
                f"{word.strip()!r} is no load: write SEQUENCESxPROMPT+ANSWER, e.g. 8x8192+32, "
                "with commas between several"
            )
        loads.append(Load(*(int(number) for number in match.groups())))
    repeated = [str(load) for load in loads if loads.count(load) > 1]
    if repeated:
        raise BadInput(f"the load {repeated[0]} is given twice: leave one out")
    return loads


_HOST = "127.0.0.1"
_DATA = b"data:"
_END = b"[DONE]"


@dataclass(frozen=True)
class Arrival:
    """How many tokens of an answer had arrived at a time (`time.perf_counter`, in seconds)."""

    at_s: float
    tokens: int


def is_ready(port: int, path: str, timeout_s: float) -> bool:
    """Whether the server answers 200."""
    try:
        with closing(http.client.HTTPConnection(_HOST, port, timeout=timeout_s)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def ask(port: int, post: Post, timeout_s: float) -> Any:  # noqa: ANN401 (any JSON)
    """The JSON of an answer, or its text. Raises ServerUnavailable."""
    with closing(http.client.HTTPConnection(_HOST, port, timeout=timeout_s)) as connection:
        text = b"".join(_sent(connection, post))
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")


def stream(server: Server, port: int, post: Post, timeout_s: float) -> list[Arrival]:
    """When the tokens of a streamed answer arrived. Raises ServerUnavailable."""
    found: list[Arrival] = []
    with closing(http.client.HTTPConnection(_HOST, port, timeout=timeout_s)) as connection:
        for line in _sent(connection, post):
            if not line.startswith(_DATA) or _END in line:
                continue
            at_s = time.perf_counter()
            tokens = _tokens(server, line.removeprefix(_DATA))
            if tokens > (found[-1].tokens if found else 0):
                found.append(Arrival(at_s, tokens))
    return found


def _tokens(server: Server, text: bytes) -> int:
    try:
        event: Mapping[str, Any] = json.loads(text)
        return server.streamed(event)
    except (ValueError, KeyError, TypeError, IndexError):
        said = text.decode(errors="replace").strip()
        raise ServerUnavailable(f"the server streamed what is no answer: {said[:300]}") from None


def _sent(connection: http.client.HTTPConnection, post: Post) -> Iterator[bytes]:
    """The lines of the answer as they arrive."""
    try:
        body = json.dumps(post.body).encode()
        connection.request("POST", post.path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            said = answer.read().decode(errors="replace").strip()
            raise ServerUnavailable(
                f"the server answered {answer.status} to {post.path}: {said[:300]}"
            )
        yield from answer
    except TimeoutError:
        raise ServerUnavailable(
            f"{post.path} was not answered within {connection.timeout:g} s: give it longer with "
            "--load-timeout, or choose a smaller load"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnavailable(f"{post.path} was not answered: {error}") from None


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
