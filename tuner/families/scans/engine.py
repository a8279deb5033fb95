"""What an engine whose chunked scan can be tuned has to give, and what it inherits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from tuner.compile.candidates import Binder, Companions
from tuner.devices.target import CUDA, Target
from tuner.engines.engine import Engine, engine_module
from tuner.errors import UnsupportedKernel, did_you_mean
from tuner.families.chunk_scan.problem import NAME, ChunkScan, ScanKernel, tokens_of
from tuner.families.scans.sources import Launchers
from tuner.kernels.binding import Argument, Binding, Pointer, argument_of, bind
from tuner.kernels.definitions import Definitions
from tuner.kernels.lift import Lifted
from tuner.kernels.stand_ins import Element, KernelLaunch, TensorSpec
from tuner.problems.points import TRITON_DEFAULTS, Candidate, Config, Point, triton_defaults

# The constants that a configuration of each kernel holds; num_warps and num_stages are in each.
BLOCKS = {
    ScanKernel.CUMSUM: ("BLOCK_SIZE_H",),
    ScanKernel.STATE: ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"),
    ScanKernel.PASSING: ("BLOCK_SIZE",),
    ScanKernel.BMM: ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"),
    ScanKernel.SCAN: ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"),
}
# What a launcher allocates itself, by the kernel's name for it: the name of the tensor here.
_MADE = {
    ScanKernel.CUMSUM: {"dt_out_ptr": "dt_out", "dA_cumsum_ptr": "dA_cumsum"},
    ScanKernel.STATE: {"states_ptr": "states"},
    ScanKernel.PASSING: {"out_ptr": "passed", "final_states_ptr": "last"},
    ScanKernel.BMM: {"out_ptr": "CB"},
}


@dataclass(frozen=True)
class ScanLaunch:
    """A kernel of the chain, with the grid that the engine launches it with.

    The operands, with T tokens in c chunks of s tokens, h heads of p, g groups and n states:
    x and out (T, h, p), dt (T, h), B and C (T, g, n) are parts of rows; A, D and dt_bias (h);
    dt_out and dA_cumsum (h, c, s), states (c, h, p, n) and CB (c, g, s, s) float32; passed
    (c, h, p, n); final (sequences, h, p, n); last (h, p, n). Further ones say which tokens are a
    sequence's: see `inputs.layout`.
    """

    binding: Binding
    grid: tuple[int, ...]


E = TypeVar("E", bound=Engine)
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class ScanKernels(ABC, Generic[E]):
    """The kernels of one engine version, launched as its own launchers do.

    All methods may raise UnsupportedKernel.
    """

    engine: E
    lifted: Lifted
    launchers: Launchers  # of each part, with the kernel that each launches; the main one first
    _chosen: dict[str, int] = field(default_factory=dict)
    _opened: dict[tuple[str, Target], Definitions] = field(default_factory=dict)
    _launches: list[KernelLaunch] = field(default_factory=list)

    @property
    def hash(self) -> str:
        """The sha256 of the lifted source."""
        return self.lifted.hash

    @property
    @abstractmethod
    def passes_before(self) -> bool:
        """Whether `passed` holds the states before each chunk, rather than after it."""

    @abstractmethod
    def _arguments(self, problem: ChunkScan, point: Point, launcher: str) -> Mapping[str, Any]:
        """The arguments of a launcher. It takes those that are among its parameters."""

    @abstractmethod
    def _open(self, part: ScanKernel, target: Target) -> Definitions:
        """The functions of the file that defines a part's kernels. They record in `_launches`, and
        launch with `_chosen`.
        """

    def launches(
        self, problem: ChunkScan, point: Point, config: Config, target: Target
    ) -> list[ScanLaunch]:
        """What the engine launches at a point with a configuration, in turn."""
        part = kernel_of(point)
        self._check(part, config)
        self._launches.clear()
        self._chosen.clear()
        self._chosen.update(config)
        for launcher in self.launchers[part]:
            arguments = self._arguments(problem, point, launcher)
            self._definitions(part, target).call(launcher, arguments)
        names = [launch.kernel for launch in self._launches]
        if names != [*self.launchers[part].values()]:
            wanted = " and ".join(self.launchers[part].values())
            raise UnsupportedKernel(f"{self.lifted.origin}: {part.value} does not launch {wanted}")
        return [self._bound(part, launch, target) for launch in self._launches]

    def listed(self, problem: ChunkScan, part: ScanKernel, target: Target) -> Sequence[Config]:
        """The configurations among which the engine chooses; empty where it runs constants.

        Tiles that are wider than what they cover are left out, and what Triton miscompiles.
        """
        found = self._definitions(part, target).autotuned(self.main_kernel(part))
        whole = [Config({**TRITON_DEFAULTS, **config}) for config in found]
        sound = [one for one in whole if not (part is ScanKernel.SCAN and racy(one, target))]
        fitting = [one for one in sound if not oversized(problem, part, one)]
        return fitting or whole[:1]

    def constants(self, problem: ChunkScan, part: ScanKernel, target: Target) -> Config | None:
        """What the engine always runs; None where it chooses."""
        if self._definitions(part, target).autotuned(self.main_kernel(part)):
            return None
        parameters = self.lifted.parameters(self.main_kernel(part))
        values = {p.name: p.default for p in parameters if p.name in BLOCKS[part]}
        if not all(isinstance(value, int) for value in values.values()):
            raise UnsupportedKernel(f"{self.lifted.origin}: {part.value} has no constants")
        return Config({**TRITON_DEFAULTS, **{n: int(str(v)) for n, v in values.items()}})

    def operands(self, problem: ChunkScan, point: Point, launcher: str) -> dict[str, Any]:
        """The arguments that launchers of all engines have, by their names.

        x, B and C are parts of the rows that a layer's convolution gives, and dt of the rows of its
        projection.
        """
        tokens, chunks = tokens_of(point), problem.chunks(tokens_of(point))
        h, p, n = problem.heads, problem.head_dim, problem.state_size
        groups, size = problem.groups, problem.chunk_size
        dtype, kept = _SHORT[problem.dtype.value], _SHORT[problem.state_dtype]
        row = h * p + 2 * groups * n  # of the convolution: x, B and C
        projected = 2 * h * p + 2 * groups * n + h  # gate, x, B, C and dt
        found: dict[str, Any] = {
            "x": TensorSpec("x", (tokens, h, p), dtype, (row, p, 1)),
            "B": TensorSpec("B", (tokens, groups, n), dtype, (row, n, 1)),
            "C": TensorSpec("C", (tokens, groups, n), dtype, (row, n, 1)),
            "dt": TensorSpec("dt", (tokens, h), dtype, (projected, 1)),
            "A": TensorSpec("A", (h,), "fp32"),
            "D": TensorSpec("D", (h,), dtype),
            "dt_bias": TensorSpec("dt_bias", (h,), dtype),
            "out": TensorSpec("out", (tokens, h, p), dtype),
            "dA_cumsum": TensorSpec("dA_cumsum", (h, chunks, size), "fp32"),
            "CB": TensorSpec("CB", (chunks, groups, size, size), "fp32"),
            "passed": TensorSpec("passed", (chunks, h, p, n), kept),
            **{"z": None, "initial_states": None, "chunk_size": size, "dt_softplus": True},
            "dt_limit": (0.0, float("inf")),
            **{"output_dtype": Element("fp32"), "out_dtype": Element(kept)},
        }
        if launcher == "_state_passing_fwd":
            found["states"] = TensorSpec("states", (chunks, h, p * n), "fp32")
        if launcher == "_chunk_scan_fwd":
            found["states"] = found["passed"]
        if launcher != "_chunk_cumsum_fwd":
            found["dt"] = TensorSpec("dt_out", (h, chunks, size), "fp32")
        return {**found, "a": found["C"], "b": found["B"], "cb": found["CB"]}

    def binder(self, problem: ChunkScan, target: Target) -> Binder:
        """The main kernel of a candidate, for the compiler."""
        return lambda candidate: self._bindings(problem, candidate, target)[0]

    def companions(self, problem: ChunkScan, target: Target) -> Companions:
        """The further kernels of a candidate."""
        return lambda candidate: self._bindings(problem, candidate, target)[1:]

    def _bindings(
        self, problem: ChunkScan, candidate: Candidate, target: Target
    ) -> list[tuple[Lifted, Binding]]:
        found = self.launches(problem, candidate.point, candidate.config, target)
        return [(self.lifted, launch.binding) for launch in found]

    def main_kernel(self, part: ScanKernel) -> str:
        """The name of a part's kernel; of several, the one that does most."""
        return next(iter(self.launchers[part].values()))

    def _definitions(self, part: ScanKernel, target: Target) -> Definitions:
        key = part.value, target
        if key not in self._opened:
            self._opened[key] = self._open(part, target)
        return self._opened[key]

    def _bound(self, part: ScanKernel, launch: KernelLaunch, target: Target) -> ScanLaunch:
        parameters = self.lifted.parameters(launch.kernel)
        constexpr = {parameter.name for parameter in parameters if parameter.constexpr}
        known: dict[str, Argument] = {}
        for name, value in launch.arguments.items():
            argument = argument_of(name, value, constant=name in constexpr)
            if isinstance(argument, Pointer) and not argument.operand:
                argument = replace(argument, operand=self._made(part, launch.kernel, name))
            known[name] = argument
        options = {**triton_defaults(target.backend), **launch.options}
        binding = bind(self.lifted.origin, launch.kernel, parameters, known, options)
        return ScanLaunch(binding, launch.grid)

    def _made(self, part: ScanKernel, kernel: str, name: str) -> str:
        if kernel != self.main_kernel(part):
            return "final"  # the states at the ends of sequences
        try:
            return _MADE[part][name]
        except KeyError:
            raise UnsupportedKernel(
                f"{self.lifted.origin}: {kernel} writes an unknown tensor {name}"
            ) from None

    def _check(self, part: ScanKernel, config: Config) -> None:
        names = (*BLOCKS[part], *TRITON_DEFAULTS)
        for key in config:
            if key not in names:
                near = did_you_mean(key, names)
                raise UnsupportedKernel(f"{part.value} takes no config key {key!r}{near}")
        if missing := [name for name in names if name not in config]:
            raise UnsupportedKernel(f"{part.value} needs {', '.join(missing)}")


def oversized(problem: ChunkScan, part: ScanKernel, config: Config) -> bool:
    """Whether a tile is wider than what it covers, which the kernel would mask."""
    return any(config[name] > padded(limit) for name, limit in covered(problem, part).items())


def racy(config: Config, target: Target) -> bool:
    """Whether the products of the scan may race: on sm_90, whole warpgroups with stages that
    overlap. wgmma has an operand in registers, which the next iteration overwrites (vLLM 0.33.0,
    `_drop_racy_wgmma_configs` in model_executor/layers/mamba/ops/ssd_chunk_scan.py).
    """
    overlaps = config["num_stages"] > 1 and config["num_warps"] % 4 == 0
    return target.is_sm(90) and overlaps and config["BLOCK_SIZE_M"] % 64 == 0


def covered(problem: ChunkScan, part: ScanKernel) -> dict[str, int]:
    """The length that each block of a kernel covers in steps."""
    p, s = problem, problem.chunk_size
    lengths = {
        ScanKernel.CUMSUM: (p.heads,),
        ScanKernel.STATE: (p.head_dim, p.state_size, s),
        ScanKernel.PASSING: (p.head_dim * p.state_size,),
        ScanKernel.BMM: (s, s, p.state_size),
        ScanKernel.SCAN: (s, p.head_dim, s),
    }[part]
    return dict(zip(BLOCKS[part], lengths, strict=True))


def padded(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


def kernel_of(point: Point) -> ScanKernel:
    """A point's part."""
    assert isinstance(point.part, ScanKernel)  # the problem is a scan
    return point.part


@dataclass(frozen=True)
class ScanEngine(ABC):
    """The chunked scan of one engine version on disk."""

    engine: Engine

    @abstractmethod
    def lift(self, backend: str = CUDA) -> ScanKernels[Any]:
        """The kernels for a backend, "cuda" or "hip". Raises UnsupportedKernel."""


def scan_engine(engine: Engine) -> ScanEngine:
    """The chunked scan of an engine. Raises UnsupportedFamily if it cannot be tuned."""
    found: ScanEngine = engine_module(engine.name, NAME).open_family(engine)
    return found
