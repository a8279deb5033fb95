"""List the computed answers, by the name that the table's rows have in `answer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.diagnose import captures, compilers, files, shared_memory
from tuner.diagnose.computed_answer import ComputedAnswer
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding

# An answer is None if the lines around a message show that it says nothing.
ANSWERS: Mapping[str, Callable[[LogFinding, Context], ComputedAnswer | None]] = {
    "missing_file": files.missing_file,
    "named_file": files.named_file,
    "cut_file": files.cut_file,
    "script_stopped": files.script_stopped,
    "shared_memory": shared_memory.shared_memory,
    "compiler": compilers.compiler,
    "cutlass_tile": compilers.cutlass_tile,
    "topology": captures.topology,
    "rdma_ports": captures.rdma_ports,
    "gid_table": captures.gid_table,
}
