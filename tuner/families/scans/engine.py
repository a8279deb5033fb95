"""Define the interface of engines whose chunked scans can be tuned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from tuner.compile.candidates import Binder, Companions
from tuner.devices.table import architecture
from tuner.devices.target import CUDA, Target
from tuner.engines.engine import Engine, engine_module
from tuner.errors import UnsupportedKernel, did_you_mean
from tuner.families.scans.scan import (
    Call,
    Scan,
    ScanKernel,
    ScanProblem,
    TunedKernel,
    TunedKernels,
    kernel_of,
)
from tuner.families.scans.sources import ScanSources
from tuner.kernels.binding import Argument, Binding, Pointer, argument_of, bind
from tuner.kernels.definitions import Definitions
from tuner.kernels.lift import Lifted
from tuner.kernels.stand_ins import KernelLaunch
from tuner.problems.points import (
    TRITON_DEFAULTS,
    Candidate,
    Config,
    Part,
    Point,
    triton_defaults,
)


@dataclass(frozen=True)
class ScanLaunch:
    """A kernel of the chain, with the grid that the engine launches it with.

    Its pointers name the tensors of the family's operands and outputs.
    """

    binding: Binding
    grid: tuple[int, ...]


E = TypeVar("E", bound=Engine)
K = TypeVar("K", bound="ScanKernels[Any]")
_USUAL_SHARED_BYTES = 102400  # `Backend.DEFAULT` of the engines' fla/utils.py


@dataclass(frozen=True)
class ScanKernels(ABC, Generic[E]):
    """The kernels of an engine version, launched as its own launchers do.

    All methods may raise UnsupportedKernel.
    """

    engine: E
    scan: Scan  # with the kernels and calls that this engine has
    folder: Path  # of the kernels' files
    lifted: Lifted
    # Further arguments of `inputs.reference`, which depend on the engine.
    differs: Mapping[str, Any] = field(default_factory=dict)
    _chosen: dict[str, int] = field(default_factory=dict)
    _given: dict[str, Any] = field(default_factory=dict)  # the arguments of the launcher that runs
    _opened: dict[tuple[str, Target], Definitions] = field(default_factory=dict)
    _launches: list[KernelLaunch] = field(default_factory=list)
    _lists: dict[tuple[Part, Target], list[dict[str, int]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls: type[K],
        engine: Engine,
        sources: ScanSources,
        family: str,
        platform: str,
        **more: Any,  # noqa: ANN401  # further fields
    ) -> K:
        """Lift a family's kernels. Raises UnsupportedKernel."""
        lifted = sources.lift(engine, family, platform)
        return cls(
            engine, sources.scan(family), sources.folder(engine.root, family), lifted, **more
        )

    @property
    def kernels(self) -> TunedKernels:
        return self.scan.kernels

    @property
    def hash(self) -> str:
        """Return the sha256 of the lifted source."""
        return self.lifted.hash

    def _arguments(self, problem: ScanProblem, point: Point, call: Call) -> Mapping[str, Any]:
        """Return the arguments of a launcher by name; it takes the arguments that are its
        parameters.
        """
        return self.scan.operands(problem, point, call)

    def _known(self, target: Target) -> Mapping[str, object]:
        """Return further stand-ins, by the names that a file uses."""
        return {}

    @abstractmethod
    def _open(self, source: Path, target: Target) -> Definitions:
        """Return the functions of a file. They record in `_launches`, and launch with `_chosen`."""

    def launches(
        self, problem: ScanProblem, point: Point, config: Config, target: Target
    ) -> list[ScanLaunch]:
        """Return the engine's launches at a point with a configuration, in turn."""
        self._check(point.part, config)
        return [
            self._bound(call, self._launched(problem, point, call, config, target), target)
            for call in self._kernel_of(point.part).calls
        ]

    def listed(self, problem: ScanProblem, part: Part, target: Target) -> Sequence[Config]:
        """Return the configurations among which the engine chooses; empty if it runs constants.

        Configurations are left out if their tiles are wider than the lengths that they cover, or if
        Triton miscompiles them.
        """
        whole = self._list(problem, part, target)
        tuned = self._kernel_of(part)
        sound = [c for c in whole if not tuned.unsafe(c, target)]
        fitting = [one for one in sound if not oversized(problem, part, one)]
        return fitting or whole[:1]

    def constants(self, problem: ScanProblem, part: Part, target: Target) -> Config | None:
        """Return the configuration that the engine always runs; None if it chooses."""
        if listed := self._list(problem, part, target):
            return listed[0] if len(listed) == 1 else None
        return self._given_constants(problem, part, target)

    def _given_constants(self, problem: ScanProblem, part: Part, target: Target) -> Config:
        """Return the constants that the launcher itself has."""
        call = self._kernel_of(part).calls[0]
        point = Point(1, part, problem.chunk_size)
        launch = self._launched(problem, point, call, {}, target)
        defaults = {p.name: p.default for p in self.lifted.parameters(launch.kernel)}
        values = {n: {**defaults, **launch.arguments}.get(n) for n in self._kernel_of(part).blocks}
        if not all(isinstance(value, int) for value in values.values()):
            raise UnsupportedKernel(f"{self.lifted.origin}: {part.value} has no constants")
        found = {name: int(str(value)) for name, value in values.items()}
        return Config({**TRITON_DEFAULTS, **found, **launch.options})

    def _list(self, problem: ScanProblem, part: Part, target: Target) -> list[Config]:
        """Return the list of an autotuner; empty without an autotuner. A launcher may set some of
        the blocks.
        """
        tuned, found = self._kernel_of(part), self._tuned(part, target)
        whole = all(name in config for config in found for name in tuned.blocks)
        said = TRITON_DEFAULTS if whole else self._given_constants(problem, part, target)
        names = (*tuned.blocks, *TRITON_DEFAULTS)
        every = ({**said, **config} for config in found)
        return [Config({name: config[name] for name in names}) for config in every]

    def _tuned(self, part: Part, target: Target) -> list[dict[str, int]]:
        """Return an autotuner's list as it is; empty without an autotuner."""
        if (part, target) not in self._lists:  # each launch asks
            tuned = self._kernel_of(part)
            kernel = next(n for n in tuned.calls[0].kernels if n in self.lifted.functions)
            found = self._definitions(tuned.file, target).autotuned(kernel)
            self._lists[part, target] = found
        return self._lists[part, target]

    def first_tokens(self, problem: ScanProblem) -> int:
        """Return the tokens of the prompt at which an autotuner chooses: the first prompt, of one
        chunk.
        """
        return problem.chunk_size

    def binder(self, problem: ScanProblem, target: Target) -> Binder:
        """Return the main kernel of a candidate, for the compiler."""
        return lambda candidate: self._bindings(problem, candidate, target)[0]

    def companions(self, problem: ScanProblem, target: Target) -> Companions:
        """Return the further kernels of a candidate."""
        return lambda candidate: self._bindings(problem, candidate, target)[1:]

    def _bindings(
        self, problem: ScanProblem, candidate: Candidate, target: Target
    ) -> list[tuple[Lifted, Binding]]:
        found = self.launches(problem, candidate.point, candidate.config, target)
        return [(self.lifted, launch.binding) for launch in found]

    def _kernel_of(self, part: Part) -> TunedKernel:
        assert isinstance(part, ScanKernel)  # the problem is a scan
        if part not in self.kernels:
            wanted = " or ".join(f"chain={name}" for name in self.scan.chains)
            raise UnsupportedKernel(
                f"{self.lifted.origin} does not run {part.value}: the problem is of another "
                f"engine's chain of kernels; give it {wanted}"
            )
        return self.kernels[part]

    def _definitions(self, file: str, target: Target) -> Definitions:
        if (file, target) not in self._opened:
            self._opened[file, target] = self._open(self.folder / file, target)
        return self._opened[file, target]

    def _launched(
        self,
        problem: ScanProblem,
        point: Point,
        call: Call,
        config: Mapping[str, int],
        target: Target,
    ) -> KernelLaunch:
        """Return a call's launch of its kernel. A launcher may launch other kernels of the chain
        too.
        """
        # An argument that all of an autotuner's configurations share is part of the launch.
        alike = common_arguments(
            self._tuned(point.part, target), self._kernel_of(point.part).blocks
        )
        for held, now in ((self._chosen, {**alike, **config}), (self._given, {})):
            held.clear()
            held.update(now)
        self._given.update(self._arguments(problem, point, call))
        self._launches.clear()
        self._definitions(self._kernel_of(point.part).file, target).call(call.launcher, self._given)
        known = {n for tuned in self.kernels.values() for one in tuned.calls for n in one.kernels}
        found = [launch for launch in self._launches if launch.kernel in call.kernels]
        if len(found) != 1 or not {launch.kernel for launch in self._launches} <= known:
            origin, part = self.lifted.origin, point.part.value
            raise UnsupportedKernel(f"{origin}: {part} does not launch {call.kernel}")
        return found[0]

    def _bound(self, call: Call, launch: KernelLaunch, target: Target) -> ScanLaunch:
        parameters = self.lifted.parameters(launch.kernel)
        constexpr = {parameter.name for parameter in parameters if parameter.constexpr}
        known: dict[str, Argument] = {}
        for name, value in launch.arguments.items():
            argument = argument_of(name, value, constant=name in constexpr)
            if isinstance(argument, Pointer) and not argument.operand:
                if name not in call.made:
                    raise UnsupportedKernel(
                        f"{self.lifted.origin}: {launch.kernel} writes an unknown tensor {name}"
                    )
                argument = replace(argument, operand=call.made[name])
            known[name] = argument
        options = {**triton_defaults(target.platform), **launch.options}
        binding = bind(self.lifted.origin, launch.kernel, parameters, known, options)
        return ScanLaunch(binding, launch.grid)

    def _check(self, part: Part, config: Config) -> None:
        names = (*self._kernel_of(part).blocks, *TRITON_DEFAULTS)
        for key in config:
            if key not in names:
                near = did_you_mean(key, names)
                raise UnsupportedKernel(f"{part.value} takes no config key {key!r}{near}")
        if missing := [name for name in names if name not in config]:
            raise UnsupportedKernel(f"{part.value} needs {', '.join(missing)}")


def common_arguments(
    configs: Sequence[Mapping[str, int]], blocks: Collection[str]
) -> dict[str, int]:
    """Return the arguments that all configurations of an autotuner share besides the tuned ones."""
    first = configs[0] if configs else {}
    names = [name for name in first if name not in blocks and name not in TRITON_DEFAULTS]
    return {n: first[n] for n in names if all(config.get(n) == first[n] for config in configs)}


def fla_answers(target: Target) -> Mapping[str, object]:
    """Return the answers of the engines' fla/utils.py about a card, without environment
    variables.
    """
    wide = architecture(target).shared_optin_bytes >= _USUAL_SHARED_BYTES
    return {
        "check_shared_mem": lambda arch="none": wide,
        "is_nvidia_hopper": target.is_sm_or_later(90),
        "is_tma_supported": False,
        "FLA_TRIL_PRECISION": "ieee",
        "_CAST_DOT_TO_K_DTYPE": target.name.startswith(("gfx11", "gfx12")),
    }


def chunk_lists(given: Mapping[str, Any]) -> dict[str, object]:
    """Return engines' functions that find the chunks of a batch, each with the answer for the
    prompts.

    `given`: the arguments of the launcher that runs.
    """
    return {
        "prepare_chunk_indices": lambda ends, size: given["chunk_indices"],
        "prepare_chunk_offsets": lambda ends, size: given["chunk_offsets"],
    }


def oversized(problem: ScanProblem, part: Part, config: Config) -> bool:
    """Say whether a tile is wider than the length that it covers, so that the kernel masks the
    rest.
    """
    tuned = kernel_of(problem, part)
    lengths = zip(tuned.blocks, tuned.covers(problem), strict=True)
    return any(config[name] > padded(length) for name, length in lengths)


def padded(n: int) -> int:
    """Return the next power of two."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class ScanEngine:
    """The chunked scans of a family in an engine version on disk."""

    engine: Engine
    lifts: Callable[[Any, str], ScanKernels[Any]]  # the engine and a platform to its kernels

    def lift(self, platform: str = CUDA) -> ScanKernels[Any]:
        """Return the kernels for a platform, "cuda" or "hip". Raises UnsupportedKernel."""
        return self.lifts(self.engine, platform)


def scan_engine(engine: Engine, family: str) -> ScanEngine:
    """Return a family's scan in an engine. Raises UnsupportedFamily if it cannot be tuned."""
    found: ScanEngine = engine_module(engine.name, family).open_family(engine)
    return found
