"""Find the problem for which sglang warned that it has no config file.

"Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found
at PATH": the path names the whole problem of a rank, but for the type of its output.
"""

from __future__ import annotations

from tuner.engines.sglang.dense_gemm.files import find_file_name, format_file_name
from tuner.errors import BadProblem
from tuner.families.dense_gemm.engine import GemmFileKey
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.models.serving import Resolved, Serving
from tuner.problems.dtypes import parse_dtype


def parse_warning(text: str) -> GemmFileKey | None:
    """Find the name of a GEMM's config file in a line or a path; None if there is none."""
    return find_file_name(text)


def resolve_warning(text: str, serving: Serving) -> Resolved | None:
    """The problem whose file a line names; None if it names no file. Raises BadProblem."""
    key = parse_warning(text)
    if key is None:
        return None
    name, dtype = format_file_name(key), parse_dtype(key.dtype)
    if serving.dtype not in (None, dtype):
        raise BadProblem(f"{name} is of {dtype.value}, not {serving.dtype.value}")
    problem = DenseGemm(key.N, key.K, dtype, key.block)
    notes = (f"the output is {problem.out.value}; the file serves other types too",)
    return Resolved((problem,), notes, key.device or None)
