"""What Optuna's TPE suggests from the times at one point."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping

import optuna

from tuner.problems.points import Config
from tuner.problems.results import Measurement
from tuner.tuning.space import Space

_ATTEMPTS = 2  # TPE may repeat itself or leave the space; an attempt takes about 10 ms


def suggestions(space: Space, results: Mapping[Config, Measurement], seed: int) -> Iterator[Config]:
    """Configurations of the space that are not among the results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # constant_liar counts untried suggestions as poor, so TPE does not repeat them.
        sampler = optuna.samplers.TPESampler(
            multivariate=True, constant_liar=True, n_startup_trials=0, seed=seed
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler)
    grid = {
        name: optuna.distributions.IntDistribution(0, len(values) - 1)
        for name, values in space.axes.items()
    }
    study.add_trials(
        optuna.create_trial(
            params=space.indices(config),
            distributions=dict(grid),
            # TPE only ranks values, so a failure counts as slower than any time.
            value=math.inf if m.median_us is None else m.median_us,
        )
        for config, m in results.items()
    )
    for _ in range(_ATTEMPTS):
        config = space.at(study.ask(dict(grid)).params)
        if space.legal(config) and config not in results:
            yield config
