"""Bind vLLM's kernel of the Mamba-2 state update as its own launcher launches it.

The layer (`MambaMixer2.conv_ssm_forward`) decides what the tensors are: A, D, dt and dt_bias have
one number for each head, which strides of 0 repeat. x, B, C and dt are parts of the rows of one
projection. A server that decodes one token for each sequence is followed: no draft tokens, no
stochastic rounding, and no ReplaySSM.

The kernel is not specialised on the number of sequences, so points share machine code; only one
sequence may have a variant of its own, where heads are no multiple of 16.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.devices.target import CUDA, Target
from tuner.engines.vllm.functions import EngineFunctions
from tuner.engines.vllm.package import VLLM
from tuner.errors import BadProblem, UnsupportedKernel, did_you_mean
from tuner.families.state_update.engine import StateKernels, StateLaunch
from tuner.families.state_update.problem import StateUpdate
from tuner.kernels.binding import argument_of, bind
from tuner.kernels.lift import Lifted, lift
from tuner.kernels.stand_ins import SHORT_NAMES, KernelLaunch, TensorSpec
from tuner.problems.points import Config, triton_defaults

SOURCE = "model_executor/layers/mamba/ops/mamba_ssm.py"
KERNEL = "_selective_scan_update_kernel"
ENTRY = ("BLOCK_SIZE_M", "num_warps")  # all that the launcher takes of a configuration
_LAUNCHER = "selective_state_update"
_CHOICE = "try_get_optimal_ssm_config"  # what the launcher asks for a configuration


@dataclass(frozen=True)
class VLLMStateKernels(StateKernels):
    """The kernel of one version of vLLM."""

    engine: VLLM
    lifted: Lifted
    backend: str
    _functions: dict[tuple[Target, Config], EngineFunctions] = field(default_factory=dict)

    def launch(
        self, problem: StateUpdate, batch_size: int, config: Config, target: Target
    ) -> StateLaunch:
        if batch_size < 1:
            raise BadProblem(f"the batch size must be at least 1, not {batch_size}")
        self._check(config)
        launch = self._followed(problem, batch_size, config, target)
        parameters = self.lifted.parameters(launch.kernel)
        constants = {parameter.name for parameter in parameters if parameter.constexpr}
        known = {
            name: argument_of(name, value, constant=name in constants)
            for name, value in launch.arguments.items()
        }
        options = {**triton_defaults(target.backend), **launch.options}
        binding = bind(self.lifted.origin, launch.kernel, parameters, known, options)
        return StateLaunch(binding, launch.grid)

    def _followed(
        self, problem: StateUpdate, batch_size: int, config: Config, target: Target
    ) -> KernelLaunch:
        key = target, config
        if key not in self._functions:
            chosen = tuple(config[name] for name in ENTRY)
            known = {_CHOICE: lambda *asked: chosen}
            self._functions[key] = EngineFunctions(self.engine, SOURCE, target, known=known)
        functions = self._functions[key]
        if not functions.has(_CHOICE):
            raise UnsupportedKernel(
                f"{self.lifted.origin} takes no configuration for its state update"
            )
        arguments = {**operands(problem, batch_size), "dt_softplus": True, "is_blackwell": False}
        launches = functions.launches(_LAUNCHER, arguments)
        if [launch.kernel for launch in launches] != [KERNEL]:
            raise UnsupportedKernel(f"{self.lifted.origin}: {_LAUNCHER} does not launch {KERNEL}")
        return launches[0]

    def _check(self, config: Config) -> None:
        origin = self.lifted.origin
        for key in config:
            if key not in ENTRY:
                near = did_you_mean(key, ENTRY)
                raise UnsupportedKernel(f"{origin}: {_LAUNCHER} takes no config key {key!r}{near}")
        if missing := [name for name in ENTRY if name not in config]:
            raise UnsupportedKernel(f"{origin}: {_LAUNCHER} needs {', '.join(missing)}")


def operands(problem: StateUpdate, batch_size: int) -> dict[str, TensorSpec]:
    """The launcher's tensors. A slot of the states is a whole page of vLLM's cache, whose length is
    a multiple of 16 elements in any case.
    """
    n, heads, width = batch_size, problem.heads, problem.head_dim
    states, groups = problem.state_size, problem.groups
    dtype = SHORT_NAMES[problem.dtype.value]
    # gate, x, B, C and dt of a sequence are one row of the projection.
    row = 2 * heads * width + 2 * groups * states + heads
    # Where there is one sequence, torch gives that dimension the stride of a contiguous tensor.
    of_x, of_b = (row, row) if n > 1 else (heads * width, groups * states)
    grouped = (n, groups, states)
    indices = TensorSpec("indices", (n, 1), "i32", (1, 1))
    return {
        "state": TensorSpec(
            "state", (n + 1, heads, width, states), SHORT_NAMES[problem.cache_dtype]
        ),
        "x": TensorSpec("x", (n, heads, width), dtype, (of_x, width, 1)),
        "dt": TensorSpec("dt", (n, heads, width), dtype, (row, 1, 0)),
        "A": TensorSpec("A", (heads, width, states), "fp32", (1, 0, 0)),
        "B": TensorSpec("B", grouped, dtype, (of_b, states, 1)),
        "C": TensorSpec("C", grouped, dtype, (of_b, states, 1)),
        "D": TensorSpec("D", (heads, width), dtype, (1, 0)),
        "dt_bias": TensorSpec("dt_bias", (heads, width), dtype, (1, 0)),
        "out": TensorSpec("out", (n, heads, width), dtype),
        "state_batch_indices": indices,
        "dst_state_batch_indices": indices,
    }


def lift_state_update(engine: VLLM, backend: str = CUDA) -> VLLMStateKernels:
    """Lift the kernel of an engine on disk for a backend, "cuda" or "hip".

    Raises UnsupportedKernel; see `lift`.
    """
    origin = f"{engine.name} {engine.version}"
    lifted = lift(engine.root / SOURCE, (KERNEL,), engine.root, origin, backend)
    return VLLMStateKernels(engine, lifted, backend)
