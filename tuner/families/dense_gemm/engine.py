"""Define the interface of engines whose quantised dense GEMMs can be tuned."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuner.devices.table import Device
from tuner.devices.target import Target
from tuner.engines import file_engine
from tuner.engines.engine import Engine, engine_module
from tuner.engines.file_engine import PointwiseFiles
from tuner.families.dense_gemm.problem import BATCH_SIZES, DenseGemm
from tuner.kernels.binding import Binding, FamilyKernels
from tuner.kernels.lift import Lifted
from tuner.problems.points import Candidate, Config


@dataclass(frozen=True)
class GemmFileKey(file_engine.FileKey):
    """The facts in the name of an engine's config file."""

    N: int
    K: int
    device: str  # as the driver names it, "_" for " "
    dtype: str  # fp8_w8a8 or int8_w8a8
    block: tuple[int, int] | None  # None: per channel


ShippedFile = file_engine.ShippedFile[GemmFileKey]


@dataclass(frozen=True)
class GemmLaunch:
    """A kernel of a GEMM, with the grid that the engine launches it with.

    The operands are A (M, K), B (N, K), C (M, N), As and Bs (the scales, float32): "a", "b", "c",
    "a_scale", "b_scale". Each `Pointer.operand` of the binding is an operand or a name in
    `scratch`.
    """

    binding: Binding
    grid: tuple[int, ...]
    # Tensors that the engine allocates for this launch: (shape, Triton's short name of the type).
    # A name in two launches of a GEMM is the same tensor.
    scratch: Mapping[str, tuple[tuple[int, ...], str]]


class GemmKernels(FamilyKernels):
    """The GEMM kernels of an engine version, launched as its own launcher does."""

    @abstractmethod
    def default_config(self, problem: DenseGemm, batch_size: int, target: Target) -> Config:
        """Return the configuration that the engine runs without a file."""

    @abstractmethod
    def choices(self, problem: DenseGemm, target: Target) -> Mapping[str, tuple[int, ...]]:
        """Return the values of keys that only some versions and targets have: SWAP_AB, SPLIT_K.

        A key that is absent here must not be in an entry: the key would stop the server.
        """

    @abstractmethod
    def launches(
        self, problem: DenseGemm, batch_size: int, config: Config, target: Target
    ) -> list[GemmLaunch]:
        """Return the engine's launches with a file's entry, in order: one kernel, or two if K is
        split.

        BLOCK_SIZE_K is changed first as the engine's loader changes it.
        """

    def bound(self, problem: DenseGemm, candidate: Candidate, target: Target) -> Binding:
        size, config = candidate.point.batch_size, candidate.config
        return self.launches(problem, size, config, target)[0].binding

    def companions(
        self, problem: DenseGemm, target: Target
    ) -> Callable[[Candidate], list[tuple[Lifted, Binding]]]:
        """Return a function that gives all of a candidate's `launches` but the first, for the
        compiler: a split of K has a second kernel, which adds up the parts.
        """

        def later(candidate: Candidate) -> list[tuple[Lifted, Binding]]:
            if candidate.config.get("SPLIT_K", 1) == 1:
                return []
            size = candidate.point.batch_size
            launches = self.launches(problem, size, candidate.config, target)
            return [(self.lifted, launch.binding) for launch in launches[1:]]

        return later


@dataclass(frozen=True)
class GemmEngine(PointwiseFiles[DenseGemm, GemmFileKey, GemmKernels]):
    """The quantised dense GEMMs of an engine version on disk.

    `effective` may raise BLOCK_SIZE_K. It leaves out keys of `GemmKernels.choices` with values that
    do nothing (SWAP_AB=0, SPLIT_K=1).
    """

    grid = BATCH_SIZES

    def default_config(self, problem: DenseGemm, device: Device, batch_size: int) -> Config:
        kernels = self.lift(device.target.platform)
        return kernels.default_config(problem, batch_size, device.target)


def gemm_engine(engine: Engine) -> GemmEngine:
    """Return the quantised dense GEMMs of an engine. Raises UnsupportedFamily if they cannot be
    tuned.
    """
    found: GemmEngine = engine_module(engine.name, "dense_gemm").open_family(engine)
    return found
