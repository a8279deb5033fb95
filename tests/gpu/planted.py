"""An engine on disk whose kernel is right where GROUP_SIZE_M is 1, and bad on purpose elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tuner.engines.engine import find_engine
from tuner.families.fused_moe.engine import moe_engine

VERSION = "9.9.9"
KERNEL = Path(__file__).with_name("planted_kernel.py")


def made_up_engine(folder: Path) -> None:
    """Copy the installed sglang's config files below a folder, beside the planted kernel."""
    real = find_engine("sglang")
    root = folder / f"sglang-{VERSION}" / "sglang"
    loader = moe_engine(real).package_root
    shutil.copytree(loader, root / loader.relative_to(real.root))
    (root / "__init__.py").touch()
    (root / "version.py").write_text(f'__version__ = "{VERSION}"\n')
    target = root / "kernels" / "ops" / "moe" / "fused_moe_triton_kernels.py"
    target.parent.mkdir(parents=True)
    shutil.copy(KERNEL, target)
    os.environ["TUNER_ENGINE_PATH"] = str(folder)
