"""The fused-MoE config file that vLLM names in a line, and the problem that it is for."""

from __future__ import annotations

from tuner.engines.vllm.fused_moe.files import parse_file_name
from tuner.errors import MalformedConfigFile
from tuner.families.fused_moe.warning_line import NamedLayer, find_config_name, resolve_missing
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving


def parse_config_name(text: str) -> NamedLayer | None:
    """Find a config file's name in a line or a path; None if vLLM never looks for such a name.

    Raises BadProblem for a dtype that no problem has.
    """
    missing = find_config_name(text, packed=False)
    if missing is None:
        return None
    try:
        parse_file_name(missing.file_name)
    except MalformedConfigFile:
        return None
    return missing


def resolve_warning(text: str, serving: Serving) -> Resolved | None:
    """The problem whose file a line names; None if it names no file. Raises BadProblem."""
    missing = parse_config_name(text)
    return resolve_missing(missing, serving, _fusions) if missing else None


def _fusions(model: Model, missing: NamedLayer, moe_tp: int) -> set[int]:
    return set()
