"""The computed answers, by the name that the table's rows have in `answer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.diagnose.added import Added
from tuner.diagnose.captures import (
    amd_topology,
    gid_table,
    nccl_tests,
    perftest,
    rdma_ports,
    topology,
)
from tuner.diagnose.context import Context
from tuner.diagnose.crashes import (
    captured,
    compile_error,
    crashed_in,
    cutlass_tile,
    faulted,
    fp8_kernel,
    gpu_memory,
    hip_faulted,
    refused_within,
    scaled_mm_unserved,
    shared_memory,
    surfaced,
)
from tuner.diagnose.files import missing_file
from tuner.diagnose.findings import LogFinding
from tuner.diagnose.images import no_image
from tuner.diagnose.named_files import lacks_field, named_file, unnamed_file
from tuner.diagnose.nccl import mixed_networks, nccl_silent, nccl_timeout, sockets
from tuner.diagnose.sizes import block_shape, divides, heads, memory_taken
from tuner.diagnose.xids import xids

ANSWERS: Mapping[str, Callable[[LogFinding, Context], Added]] = {
    function.__name__: function
    for function in (
        *(missing_file, unnamed_file, named_file, lacks_field),
        *(shared_memory, cutlass_tile, scaled_mm_unserved),
        *(
            block_shape,
            divides,
            heads,
            memory_taken,
            fp8_kernel,
            gpu_memory,
            compile_error,
            crashed_in,
        ),
        *(
            captured,
            hip_faulted,
            refused_within,
            surfaced,
            faulted,
            amd_topology,
            gid_table,
            nccl_tests,
            perftest,
            rdma_ports,
            sockets,
            topology,
        ),
        *(mixed_networks, nccl_silent, nccl_timeout, no_image, xids),
    )
}
