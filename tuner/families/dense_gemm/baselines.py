"""The configurations that an engine would run without this tuner."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.devices.table import Device
from tuner.engines.config_files import launch_config
from tuner.families.dense_gemm.engine import GemmEngine, ShippedFile
from tuner.families.dense_gemm.problem import BATCH_SIZES, DenseGemm, DensePart
from tuner.problems.points import Config, Point
from tuner.tuning.pointwise import Baselines

# A file's entry is taken to be tuned for batch sizes up to this many times its key, and down to
# this part of it. Some shipped files begin at 2,048: their first entry serves all smaller sizes.
NEAR = 2


def find_baselines(
    engine: GemmEngine,
    problem: DenseGemm,
    device: Device,
    corpus: Iterable[ShippedFile],
    batch_sizes: Iterable[int],
) -> Baselines:
    """The baselines at the engine's own batch sizes, `batch_sizes`, and the shipped file's."""
    path = engine.find_file(engine.package_root, problem, device)
    keys = [key for file in corpus if file.path == path for key in file.entries]
    found: dict[Point, dict[str, Config]] = {}
    near, backend = set(), device.target.backend
    for size in sorted({*BATCH_SIZES, *batch_sizes, *keys}):
        point = Point(size, DensePart.DENSE)
        by_name = engine.incumbents(problem, device, size)
        found[point] = {name: launch_config(config, backend) for name, config in by_name.items()}
        if any(size <= NEAR * key and key <= NEAR * size for key in keys):
            near.add(point)
    return Baselines(found, frozenset(near))
