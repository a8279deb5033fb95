"""Model times for a search: a Gaussian process over measured times, and Optuna's TPE.

The process orders the proposals of a search. Its covariance falls with the distance of two places,
so a time tells of near configurations and of near batch sizes. NumPy alone does this: the base
package may bring no larger library into an engine's environment. TPE suggests further
configurations from the times at one point.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np
import optuna
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tuner.problems.points import Config
from tuner.problems.results import Measurement
from tuner.tuning.space import Space

Array = NDArray[np.float64]

# In standard deviations of the values. It covers the noise of times and facts that places lack.
NOISE = 0.1
ORDERED = 50  # more than a round tries
_erf = np.vectorize(math.erf, otypes=[np.float64])


class Surrogate:
    """A Gaussian process that predicts values at new places from known values; small is good."""

    def __init__(self, places: Sequence[Sequence[float]], values: Sequence[float]) -> None:
        """Fit the process. `places` (n, d) are scaled: the covariance is Matern 5/2
        with length 1.
        """
        _one_thread()
        self._places, known = np.array(places), np.array(values)
        self._mean = float(np.mean(known))
        self._scale = max(float(np.std(known)), 1e-3)  # equal values give no scale
        covariance = _covariance(self._places, self._places) + NOISE**2 * np.eye(len(known))
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ ((known - self._mean) / self._scale)

    def promising(self, places: Sequence[Sequence[float]]) -> Iterator[int]:
        """Yield the indices of the `ORDERED` places with the largest expected improvement on 0.

        Each chosen place counts as having its expected value before the next is chosen, so that the
        first places do not crowd. Equal places keep their order.
        """
        if not places:
            return
        wanted = np.array(places)
        cross = _covariance(wanted, self._places)
        solved = cross @ self._inverse
        means = cross @ self._weights
        left = 1 - np.einsum("ij,ij->i", solved, cross)  # the variances
        target = -self._mean / self._scale
        taken: list[Array] = []  # the effect of each place taken before on the others
        open_ = np.ones(len(wanted), dtype=bool)
        for _ in range(min(len(wanted), ORDERED)):
            gains = np.where(open_, _improvement(means, left, target), -np.inf)
            # Rounded, so that the last bits, which differ between CPUs, decide nothing.
            at = int(np.argmax(np.round(gains, 9)))
            yield at
            open_[at] = False
            shared = _covariance(wanted, wanted[at : at + 1])[:, 0] - solved @ cross[at]
            shared -= sum((one * one[at] for one in taken), np.zeros(len(wanted)))
            taken.append(shared / math.sqrt(max(left[at], 0.0) + NOISE**2))
            left = left - taken[-1] ** 2


@cache
def _one_thread() -> None:
    """Keep NumPy to one thread in this process, from now on.

    More threads would wait for each other, and take four times the CPU seconds on 16 cores. The
    GPU's process and the compile processes need these seconds.
    """
    threadpool_limits(limits=1, user_api="blas")


def _covariance(a: Array, b: Array) -> Array:
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    distance = np.sqrt(5 * np.maximum(squares, 0))
    covariance: Array = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return covariance


def _improvement(means: Array, variances: Array, target: float) -> Array:
    """Return how far a value is expected to fall below `target`, counting 0 if it does not."""
    deviations = np.sqrt(np.maximum(variances, 1e-9))
    z = (target - means) / deviations
    below = 0.5 * (1 + _erf(z / math.sqrt(2)))
    gain: Array = deviations * (z * below + np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
    return gain


_ATTEMPTS = 2  # TPE may repeat itself or leave the space; an attempt takes about 10 ms


def suggestions(space: Space, results: Mapping[Config, Measurement], seed: int) -> Iterator[Config]:
    """Yield configurations of the space that are not among the results."""
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
