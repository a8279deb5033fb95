"""Check the nodes of a cluster before an engine is launched on them.

All modules also run as a single file on Python 3.8 or later. So they import only the standard
library of Python 3.8, and `tuner.errors` and `tuner.shell`.
"""

from tuner.deploy.preflight.all_checks import PreflightResult, render, run_preflight
from tuner.deploy.preflight.capture import capture, captured_text
from tuner.deploy.preflight.facts import Expected
from tuner.deploy.preflight.main import check_here, parse_nodes
from tuner.deploy.preflight.single_file import build_single_file

__all__ = [
    "Expected",
    "PreflightResult",
    "build_single_file",
    "capture",
    "captured_text",
    "check_here",
    "parse_nodes",
    "render",
    "run_preflight",
]
