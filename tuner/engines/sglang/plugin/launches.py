"""What stands in for a kernel: it launches it with a file's constants, or with the engine's own.

A launch is decided once and remembered by all that it can depend on, so that each later one
costs a look-up. Any doubt leaves the launch as the engine made it.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Protocol

from tuner.engines.sglang.plugin.files import AttentionFile
from tuner.engines.sglang.plugin.kernels import FLAGS, FOLLOWERS, OPTIONS, KernelSignature
from tuner.engines.sglang.plugin.traits import Grid, ProblemKey, launch_key, problem_key, tuned_grid
from tuner.families.attention.problem import Attention, Stage
from tuner.problems.points import Config
from tuner.problems.results import Status

log = logging.getLogger("tuner.plugin")

Run = Callable[..., object]
_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]
_Reader = Callable[[_Args, _Kwargs], object]
_REMEMBERED = 4096  # launches; extend's lengths are any, so there is no end to them
# Launch options that an engine may give along with a kernel's arguments.
_PASSED = frozenset({*OPTIONS, "launch_pdl"})
_dtype = attrgetter("dtype")


class Jitted(Protocol):
    """What is asked of a jitted kernel (Triton's KernelInterface)."""

    arg_names: Sequence[str]
    fn: Run
    run: Run  # takes `grid` and `warmup` by name, and the kernel's arguments


class _Longest(threading.local):
    """New tokens of the longest sequence in the launcher that this thread runs."""

    tokens: object = 0


longest = _Longest()


def note_longest(launcher: Run, name: str) -> Run:
    """The hook around an engine's launcher, from whose parameter of that name the grid follows."""
    position = list(inspect.signature(launcher).parameters).index(name)

    def around(original: Run, *args: object, **kwargs: object) -> object:
        longest.tokens = kwargs[name] if name in kwargs else args[position]
        try:
            return original(*args, **kwargs)
        finally:
            longest.tokens = 0

    return around


class _Change(NamedTuple):
    """What a remembered launch is changed to, and what the engine gave in the same places."""

    grid: Grid
    tuned: _Kwargs
    engines: _Kwargs


class TunedLaunches:
    """The launches of one kernel; `stand_in` puts them in the kernel's place."""

    def __init__(self, kernel: KernelSignature, jitted: Jitted) -> None:
        """`jitted`: the engine's kernel. Until `use` is called nothing is changed."""
        self.kernel = kernel
        self.jitted = jitted
        self._names: Sequence[str] = jitted.arg_names
        parameters = inspect.signature(jitted.fn).parameters.values()
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._files: dict[ProblemKey, AttentionFile] = {}
        self._compiled: set[ProblemKey | None] = set()
        self._readers: dict[tuple[int, int], _Reader] = {}  # by how many arguments there are
        self._decided: dict[object, _Change | None] = {}

    def use(self, files: Sequence[AttentionFile]) -> None:
        """From now on, launches of these files' problems get their constants.

        Of several that this kernel cannot tell apart, the one with the fewest traits serves all.
        """
        paged = "PAGE_SIZE" in self._names
        fitting = [file for file in files if self.kernel.stage in file.problem.parts]
        self._files = {}
        for file in sorted(fitting, key=lambda file: _traits(file.problem)):
            self._files.setdefault(problem_key(self.kernel, file.problem, paged=paged), file)
        self._compiled = set()
        self._decided = {}

    def at(self, grid: Any) -> Run:  # noqa: ANN401  # the engine's
        """What `kernel[grid]` gives: it launches with the arguments that it is called with."""
        run = self.jitted.run

        def launch(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401
            # Arguments are many: reading few of them and copying them once is what keeps it cheap.
            try:
                read = self._readers[len(args), len(kwargs)]
                key = grid, longest.tokens, read(args, kwargs)
                change = self._decided[key]
            except Exception:  # not decided yet, or something that cannot be
                key, change = self._decide(grid, args, kwargs)
            if change is None:
                return run(*args, grid=grid, warmup=False, **kwargs)
            kwargs.update(change.tuned)
            try:
                return run(*args, grid=change.grid, warmup=False, **kwargs)
            except Exception as error:
                # Triton raises its own before it launches (above all: out of shared memory), so
                # the engine's constants can take over. After CUDA's a kernel may have run.
                if not _is_tritons(error):
                    raise
                self._decided[key] = None
                name, given = self.kernel.name, change.tuned
                log.warning("tuner attention: %s %s: not with %s: %s", name, grid, given, error)
                kwargs.update(change.engines)
                return run(*args, grid=grid, warmup=False, **kwargs)

        return launch

    def _decide(self, grid: Any, args: _Args, kwargs: _Kwargs) -> tuple[Any, _Change | None]:  # noqa: ANN401
        key: Any = None
        change = None
        if len(self._decided) >= _REMEMBERED:
            self._decided = {}
        try:
            arranged = len(args), len(kwargs)
            if arranged not in self._readers:
                self._readers[arranged] = self._reader(args, kwargs)
            key = grid, longest.tokens, self._readers[arranged](args, kwargs)
            self._decided[key] = None
            change = self._change(grid, args, kwargs)
            self._decided[key] = change
        except Exception:  # no launch may fail for the tuner's sake
            log.debug("tuner attention: %s is left alone", self.kernel.name, exc_info=True)
        return key, change

    def _reader(self, args: _Args, kwargs: _Kwargs) -> _Reader:
        """Reads all that a choice depends on, out of arguments that are arranged like these."""
        placed = {name: i for i, name in enumerate(self._names[: len(args)])}
        tensors = _getter([placed[name] for name in self.kernel.tensors])
        decisive = (*self.kernel.values, *self.kernel.plain)
        numbers = _getter([placed[name] for name in decisive if name in placed])
        named = _getter([name for name in decisive if name in kwargs])

        def read(args: _Args, kwargs: _Kwargs) -> object:
            return tuple(map(_dtype, tensors(args))), numbers(args), named(kwargs)

        return read

    def _change(self, grid: Grid, args: _Args, kwargs: _Kwargs) -> _Change | None:
        launch = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
        found = launch_key(self.kernel, launch, grid)
        file = self._files.get(found) if found else None
        if file is None or any(n not in self._names and n not in _PASSED for n in kwargs):
            return None
        entry = file.pick(self.kernel.stage, grid[0], self._longest())
        if found not in self._compiled:
            self._compiled.add(found)
            self._compile(file, grid, args, kwargs)
        # Where nothing was faster, the engine's own constants stay, whatever they are by now.
        if entry is None or entry.status is Status.INCUMBENT:
            return None
        new_grid = tuned_grid(self.kernel, launch, grid, entry.config, self._longest())
        tuned = self._constants(entry.config)
        # What was given by position cannot be given again by name; a KeyError ends the matter.
        engines = {name: kwargs[name] for name in tuned}
        return _Change(new_grid, tuned, engines) if new_grid else None

    def _compile(self, file: AttentionFile, grid: Grid, args: _Args, kwargs: _Kwargs) -> None:
        """Compile what later launches of the problem may need, and launch nothing.

        The first launch is a server's own warming up; later ones have users waiting.
        """
        for config in file.configs(self.kernel.stage):
            changed = {**kwargs, **self._constants(config)}
            try:
                self.jitted.run(*args, grid=grid, warmup=True, **changed)
            except Exception:  # it will be told again where it is launched
                log.debug("tuner attention: %s did not compile", config, exc_info=True)

    def _constants(self, config: Config) -> dict[str, int]:
        constants = {name: bool(v) if name in FLAGS else v for name, v in config.items()}
        for leader, follower in FOLLOWERS.items():
            if leader in constants and follower in self._names:
                constants[follower] = constants[leader]
        return constants

    def _longest(self) -> int:
        """1 for what has no lengths. Raises ValueError where they are not known."""
        if self.kernel.stage in (Stage.DECODE, Stage.REDUCE):
            return 1
        if type(longest.tokens) is not int or longest.tokens < 1:
            raise ValueError(f"{longest.tokens!r} new tokens")
        return longest.tokens


class _Forwarding(type):
    """A class that is its kernel in all but launching."""

    jitted: Jitted

    def __getattr__(cls, name: str) -> object:
        return getattr(cls.jitted, name)


def stand_in(launches: TunedLaunches) -> type:
    """A class that may stand where the kernel stood: `stand_in[grid](...)` launches.

    A class, for that is what sglang's registry puts in a target's place as it is; a function
    around the kernel's `run` would cost a launch two more copies of all its arguments.
    """
    kernel = launches.jitted
    return _Forwarding(
        launches.kernel.name, (), {"jitted": kernel, "__class_getitem__": launches.at}
    )


def _traits(problem: Attention) -> tuple[int, int, bool]:
    return problem.page_size, problem.window, problem.sinks


def _getter(keys: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """The values at all keys, always as a tuple."""
    if not keys:
        return lambda source: ()
    if len(keys) == 1:
        only = keys[0]
        return lambda source: (source[only],)
    return itemgetter(*keys)


def _is_tritons(error: Exception) -> bool:
    from triton.errors import TritonError  # noqa: PLC0415  # it runs where triton does

    return isinstance(error, TritonError)
