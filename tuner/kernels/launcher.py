"""Find out what an engine's launcher launches, without a GPU and without torch.

An engine decides in Python which kernel it launches, with which constants and arguments. This
module runs the engine's source file with stand-ins for everything that it imports: tensors are
shapes, and kernels record how they are launched. So the launches are exact for every engine
version. A question that no stand-in can answer ends in UnsupportedKernel, never in a guess.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tuner.devices.target import CUDA, HIP, Target
from tuner.errors import UnsupportedKernel
from tuner.kernels.lift import platform_probes


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's name, shape and element type (Triton's short name: bf16, i64 ...)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None  # elements; None: contiguous

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def stride(self, dim: int) -> int:
        if self.strides is not None:
            return self.strides[dim]
        return math.prod(self.shape[dim + 1 :]) if dim != -1 else 1

    def dim(self) -> int:
        return self.ndim

    def is_contiguous(self) -> bool:
        return self.strides is None


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel."""

    kernel: str
    arguments: Mapping[str, Any]  # by the kernel's parameter names; tensors are `TensorSpec`s
    grid: tuple[int, ...]
    options: Mapping[str, int | bool]  # num_warps, num_stages, launch_pdl


@dataclass
class Launcher:
    """An engine's source file, run for one target."""

    source: Path
    root: Path  # the engine's package folder
    origin: str  # e.g. "sglang 0.5.16"; for messages
    target: Target
    _launches: list[Launch] = field(default_factory=list)
    _modules: dict[Path, dict[str, Any]] = field(default_factory=dict)

    def run(self, function: str, arguments: Mapping[str, Any]) -> list[Launch]:
        """The launches of `function`, called with the `arguments` that are among its parameters.

        Raises UnsupportedKernel where the engine has no such function, where an argument is
        missing, or where the launch depends on something that only a running engine knows.
        """
        call = self._function(function)
        with self._unsupported_if_it_fails(function):
            taken = self._arguments_of(function, call, arguments)
            self._launches.clear()
            call(**taken)
        return list(self._launches)

    def parameters(self, function: str) -> tuple[str, ...]:
        """The names of a function's parameters. Raises UnsupportedKernel."""
        call = self._function(function)
        with self._unsupported_if_it_fails(function):
            return tuple(inspect.signature(call).parameters)

    def _function(self, name: str) -> Callable[..., object]:
        with self._unsupported_if_it_fails(self.source.name):
            namespace = self._execute(self.source)
        if name not in namespace:
            raise UnsupportedKernel(f"{self.origin} has no {name} in {self.source.name}")
        found: Callable[..., object] = namespace[name]
        return found

    @contextlib.contextmanager
    def _unsupported_if_it_fails(self, what: str) -> Iterator[None]:
        """Turn any error of the engine's code into UnsupportedKernel with the reason."""
        try:
            yield
        except UnsupportedKernel:
            raise
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UnsupportedKernel(
                f"{self.origin}: {what} cannot be followed ({reason})"
            ) from None

    def _arguments_of(
        self, function: str, call: Callable[..., object], known: Mapping[str, Any]
    ) -> dict[str, Any]:
        taken = {}
        for name, parameter in inspect.signature(call).parameters.items():
            if name in known:
                taken[name] = known[name]
            elif parameter.default is inspect.Parameter.empty:
                raise UnsupportedKernel(
                    f"{self.origin}: {function} needs {name!r}, which this version cannot give"
                )
        return taken

    def _execute(self, path: Path) -> dict[str, Any]:
        if path not in self._modules:
            space: dict[str, Any] = {
                "__builtins__": {**vars(builtins), "__import__": self._import},
                "__name__": path.stem,
                "__file__": str(path),
            }
            before = dict(self._modules)
            self._modules[path] = space  # before it runs, because modules may import each other
            try:
                text = path.read_text(encoding="utf-8")
                exec(compile(text, str(path), "exec", dont_inherit=True), space)  # noqa: S102
            except BaseException:
                self._modules = before  # drop it, and the modules that imported it half-run
                raise
        return self._modules[path]

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 (the protocol's own names)
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> object:
        top = name.partition(".")[0]
        if level == 0 and top in sys.stdlib_module_names:
            return builtins.__import__(name, globals, locals, fromlist, level)
        if top == "triton":
            return _triton(self._launches.append) if name == "triton" else _Unknown(name)
        if top == "torch":
            return _torch(self.target) if name == "torch" else _Unknown(name)
        sibling = self.source.parent / f"{name.rpartition('.')[2]}.py"
        file = self.root.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if top == self.root.name and sibling == file:
            return _Namespace(name, self._execute(sibling))
        # Platform probes answer for the target; other names of the module are unknown.
        probes = platform_probes(self.target.backend)
        probes["is_gfx95_supported"] = self.target.name.startswith("gfx95")
        return _Namespace(name, {probe: _answering(says) for probe, says in probes.items()})


class _Unknown:
    """A value that only a running engine knows. Code may pass it on but not depend on it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unknown(f"{self._name}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> object:
        # Called as a decorator: give back the function.
        if len(args) == 1 and not kwargs and inspect.isfunction(args[0]):
            return args[0]
        return _Unknown(f"{self._name}(...)")

    def __getitem__(self, key: object) -> _Unknown:
        return self

    def __or__(self, other: object) -> _Unknown:
        return self

    __ror__ = __or__

    def _asked(self, *args: object) -> NoReturn:
        raise UnsupportedKernel(f"it depends on {self._name}, which only a running engine knows")

    __bool__ = __int__ = __index__ = __float__ = __len__ = __iter__ = _asked
    __lt__ = __le__ = __gt__ = __ge__ = _asked
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = _asked

    def __hash__(self) -> int:
        return hash(self._name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Unknown):
            return self._name == other._name
        if isinstance(other, type):  # `typing` compares the parts of annotations
            return False
        return self._asked()


class _Namespace:
    """A module with some known names; the others are unknown."""

    def __init__(self, name: str, known: Mapping[str, Any]) -> None:
        self._name, self._known = name, known

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._known[name] if name in self._known else _Unknown(f"{self._name}.{name}")


class _Kernel:
    """A jitted function that records its launches."""

    def __init__(self, function: Callable[..., object], record: Callable[[Launch], None]) -> None:
        self._name = function.__name__
        self._parameters = tuple(inspect.signature(function).parameters)
        self._record = record

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: object, **kwargs: object) -> None:
            arguments = dict(zip(self._parameters, args, strict=False))
            arguments |= {k: v for k, v in kwargs.items() if k in self._parameters}
            options = {
                k: v
                for k, v in kwargs.items()
                if k not in self._parameters and isinstance(v, int)  # all of CUDA's are
            }
            self._record(Launch(self._name, arguments, tuple(grid), options))

        return launch


def _triton(record: Callable[[Launch], None]) -> _Namespace:
    def jit(function: Callable[..., object] | None = None, **options: object) -> object:
        return _Kernel(function, record) if function else lambda f: _Kernel(f, record)

    return _Namespace(
        "triton",
        {
            "jit": jit,
            "cdiv": lambda a, b: -(-a // b),
            "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
            "language": _Unknown("triton.language"),
        },
    )


def _torch(target: Target) -> _Namespace:
    cuda = {
        "is_available": _answering(True),
        "get_device_capability": _answering(target.capability),
    }
    version = {backend: "" if backend == target.backend else None for backend in (CUDA, HIP)}
    dtypes = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int32": "i32"}
    dtypes |= {"int64": "i64", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
    return _Namespace(
        "torch",
        {
            "cuda": _Namespace("torch.cuda", cuda),
            "version": _Namespace("torch.version", version),
            "Tensor": TensorSpec,
            **dtypes,
        },
    )


def _answering(value: object) -> Callable[..., object]:
    return lambda *args, **kwargs: value
