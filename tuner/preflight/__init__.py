"""Check the nodes of a cluster before an engine is launched on them.

Everything here but `single_file` also runs without this package, as one file on any Python >= 3.8,
so it imports the standard library alone and keeps to that version's syntax.
"""

from tuner.preflight.capture import capture
from tuner.preflight.expected import Expected, ExpectedNode
from tuner.preflight.facts import Finding, Severity
from tuner.preflight.main import check_here, parse_nodes
from tuner.preflight.report import Report, render, run_preflight
from tuner.preflight.single_file import build_single_file

__all__ = [
    "Expected",
    "ExpectedNode",
    "Finding",
    "Report",
    "Severity",
    "build_single_file",
    "capture",
    "check_here",
    "parse_nodes",
    "render",
    "run_preflight",
]
