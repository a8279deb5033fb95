"""Check the nodes of a cluster before an engine is launched on them.

Everything here but `single_file` also runs without this package, as one file on any Python >= 3.8,
so it imports the standard library alone and keeps to that version's syntax.
"""

from tuner.deploy.preflight.capture import capture
from tuner.deploy.preflight.expected import Expected
from tuner.deploy.preflight.main import check_here, parse_nodes
from tuner.deploy.preflight.report import PreflightReport, render, run_preflight
from tuner.deploy.preflight.single_file import build_single_file

__all__ = [
    "Expected",
    "PreflightReport",
    "build_single_file",
    "capture",
    "check_here",
    "parse_nodes",
    "render",
    "run_preflight",
]
