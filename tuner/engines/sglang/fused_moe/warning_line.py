"""The fused-MoE config file that sglang names in a line, and the problem that it is for."""

from __future__ import annotations

from tuner.engines.locate import Release
from tuner.engines.sglang.fused_moe.shared_experts import fuses_in_some_release
from tuner.families.fused_moe.warning_line import NamedLayer, find_config_name, resolve_missing
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving

# Folders in which releases kept their config files, and the first release without each.
_LAYOUTS: tuple[tuple[str, Release], ...] = (
    ("fused_moe_triton/configs/E=", (0, 4, 7)),
    ("fused_moe_triton/configs/triton_", (0, 5, 11)),
)


def parse_config_name(text: str) -> NamedLayer | None:
    """Find a config file's name in a line or a path; None if there is none.

    Raises BadProblem for an unknown dtype.
    """
    path = text.replace("\\", "/")
    before = next((version for folder, version in _LAYOUTS if folder in path), None)
    return find_config_name(text, packed=True, before=before)


def resolve_warning(text: str, serving: Serving) -> Resolved | None:
    """The problem whose file a line names; None if it names no file. Raises BadProblem."""
    missing = parse_config_name(text)
    return resolve_missing(missing, serving, _fusions) if missing else None


def _fusions(model: Model, missing: NamedLayer, moe_tp: int) -> set[int]:
    """The numbers of shared experts that a release may have appended."""
    if not fuses_in_some_release(model.architecture):
        return set()
    # Before 0.4.7 there was one copy for each rank.
    old = missing.before is not None and missing.before <= (0, 4, 7)
    return {moe_tp if old else model.n_shared_experts}
