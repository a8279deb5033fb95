"""Which launches of a fused-MoE layer a graph has."""

import pytest

pytest.importorskip("torch")

from tuner.families.fused_moe.gpu import FEW, spread_evenly
from tuner.families.fused_moe.layer import CHECKED, SKEWED
from tuner.measure.timing import LAUNCHES


def test_few_launches_keep_the_mix_of_even_and_skewed_routings():
    launches = [[at] for at in range(LAUNCHES)]
    kept = [at for (at,) in spread_evenly(launches, FEW)]
    assert kept == [0, 3, 6, 9]
    assert set(CHECKED) <= {*kept}
    skewed = sum(at >= LAUNCHES - SKEWED for at in kept)
    assert abs(skewed / FEW - SKEWED / LAUNCHES) < 1 / FEW / 2


def test_all_launches_may_be_kept():
    launches = [[at] for at in range(LAUNCHES)]
    assert spread_evenly(launches, LAUNCHES) == launches
