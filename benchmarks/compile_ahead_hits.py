"""How many of a run's kernels are compiled ahead, on a recording.

    python benchmarks/compile_ahead_hits.py [RECORDING ...] [--seeds 5] [--passes 8]

The search runs on each recording with the times that the device model predicts, as workers without
a GPU run it, and with the recorded times. The table counts the kernels that the second run
asks for, and how many of them the first asked for: of all, and of those beyond the first round.
Nothing is compiled: shared memory and registers are the recorded ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tuner.engines.engine import find_engine
from tuner.families.fused_moe.recording import read_recording
from tuner.measure.replay import Replay
from tuner.problems.points import Candidate
from tuner.problems.results import MeasureKind
from tuner.render import table
from tuner.tuning.ahead import PASSES, FirstRound, compile_ahead
from tuner.tuning.bench import Bench, SerialBench
from tuner.tuning.request import Source
from tuner.tuning.run import TuningRun, open_run
from tuner.tuning.run_request import Request
from tuner.tuning.tune import Plan, Unwatched, explore

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "recordings"
RECORDINGS = ("h200_E256_N256_K7168_top8_fp8w8a8_b128", "h200_E256_N64_K7168_top8_int8w8a8")
Kernel = tuple[object, object]  # its part and its configuration


class Tried:
    """A bench that remembers what it was asked for."""

    def __init__(self, inner: Bench) -> None:
        self._inner = inner
        self.totals = inner.totals
        self.submit, self.poll = self._submit, inner.poll
        self.kernels: set[Kernel] = set()

    def _submit(self, candidates: list[Candidate]) -> None:
        self.kernels |= kernels(candidates)
        self._inner.submit(candidates)


def kernels(candidates: object) -> set[Kernel]:
    return {(one.point.part, one.config) for one in candidates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = [FOLDER / f"{name}.csv.gz" for name in RECORDINGS]
    parser.add_argument("recordings", nargs="*", type=Path, default=default)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=PASSES)
    options = parser.parse_args()
    rows = [
        hits(path, seed, options.passes)
        for path in options.recordings
        for seed in range(options.seeds)
    ]
    headers = ("recording", "seed", "kernels", "compiled ahead", "later ones", "ahead", "unused")
    print(table(headers, rows))


def hits(path: Path, seed: int, passes: int) -> tuple[object, ...]:
    recording = read_recording(path)
    assert recording.device is not None, "name the recording after its GPU: h200_..."
    source = Source(MeasureKind.REPLAY, path)
    engine = find_engine("sglang==0.5.16")
    request = Request(recording.problem, recording.device, engine, source, seed=seed)
    with open_run(request) as run:
        plan = run._plan()
        predicted = Tried(SerialBench(Replay(recording), run._predictor, run.points))
        searches = (run._search() for _ in range(passes))
        compile_ahead(plan, searches, predicted, lambda ahead: None)
        measured, first = _measured(run, plan, recording)
    later = measured - first
    return (
        path.name.removesuffix(".csv.gz"),
        seed,
        len(measured),
        f"{len(measured & predicted.kernels) / len(measured):.0%}",
        len(later),
        f"{len(later & predicted.kernels) / len(later):.0%}",
        len(predicted.kernels - measured),
    )


def _measured(run: TuningRun, plan: Plan, recording: object) -> tuple[set[Kernel], set[Kernel]]:
    """The kernels of a run with recorded times, and the ones of its first round."""
    replay = Replay(recording)
    bench, search = Tried(SerialBench(replay, replay, run.points)), FirstRound(run._search())
    explore(plan, search, bench, lambda finished: None, {}, Unwatched())
    first = kernels([*plan.incumbent_candidates(), *(search.candidates or ())])
    return bench.kernels, first


if __name__ == "__main__":
    main()
