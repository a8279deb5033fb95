"""`tuner.cli.one_gpu` with a GPU's child that needs no GPU, and with a small search."""

import os
import traceback
from functools import partial

from tuner.cli import one_gpu
from tuner.families.fused_moe import tuning
from tuner.measure.workbench import Workbench
from tuner.tuning.search import Budget

if __name__ == "__main__":
    one_gpu.Workbench = partial(Workbench, "recorded_moe_child")
    tuning.budget_for = lambda *_: Budget(per_point=4, kernels=4, seeds=2)
    try:
        one_gpu.main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
