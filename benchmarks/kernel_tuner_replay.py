"""Run Kernel Tuner's strategies on cache files, in its simulation mode.

`held_out.py` writes the files and starts this script with the Python of an environment of its own
(python -m venv KT; KT/bin/pip install kernel-tuner), because Kernel Tuner asks for other versions
of packages. It prints JSON: {strategy: [the best time per point, for each seed]}.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
from pathlib import Path

import kernel_tuner
import numpy as np


def best_us(cache: Path, strategy: str, tries: int, seed: int) -> float:
    """The best time that a strategy finds, in the recording's microseconds."""
    recorded = json.loads(cache.read_text())
    known = recorded["cache"].keys()

    def recorded_or_failed(*values: int, **named: int) -> bool:
        """Kernel Tuner passes the parameters in one of both ways."""
        return ",".join(map(str, values or named.values())) in known

    random.seed(seed)
    np.random.seed(seed)  # its strategies use both
    with contextlib.redirect_stdout(io.StringIO()):
        tried, _ = kernel_tuner.tune_kernel(
            recorded["kernel_name"],
            "",
            1,
            [],
            recorded["tune_params"],
            restrictions=[recorded_or_failed],
            lang="CUDA",
            cache=str(cache),
            simulation_mode=True,
            strategy=strategy,
            strategy_options={"max_fevals": tries},
            seed=seed,
        )
    times = [one["time"] for one in tried if isinstance(one["time"], float)]
    return min(times, default=float("inf"))


def main() -> None:
    folder, tries, seeds, *strategies = sys.argv[1:]
    caches = sorted(Path(folder).glob("*.json"))
    found = {
        strategy: [
            {cache.stem: best_us(cache, strategy, int(tries), seed) for cache in caches}
            for seed in range(int(seeds))
        ]
        for strategy in strategies
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
