"""Replace the engine's kernels by objects that launch them with the constants of a file.

The choice for a launch is made once and cached under everything that it depends on, so a later
launch costs one look-up. In any doubt the launch keeps the engine's own constants.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Protocol

from tuner.bindings.sglang.plugin.files import AttentionFile
from tuner.bindings.sglang.plugin.kernels import FLAGS, FOLLOWERS, OPTIONS, KernelSignature
from tuner.bindings.sglang.plugin.launch_keys import (
    About,
    Grid,
    ProblemKey,
    launch_key,
    problem_key,
    tuned_grid,
)
from tuner.families.attention.problem import AttentionPart
from tuner.problems.points import Config
from tuner.problems.results import Status

log = logging.getLogger("tuner.plugin")

Run = Callable[..., object]
_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]
_Reader = Callable[[_Args, _Kwargs], object]
_REMEMBERED = 4096  # launches; a limit, because extend has arbitrary lengths
# Launch options that an engine may pass along with a kernel's arguments.
_PASSED = frozenset({*OPTIONS, "launch_pdl"})
_dtype = attrgetter("dtype")


class Jitted(Protocol):
    """The attributes of a jitted kernel that are used here (Triton's KernelInterface)."""

    arg_names: Sequence[str]
    fn: Run
    run: Run  # takes `grid` and `warmup` by name, and the kernel's arguments


class _Noted(threading.local):
    """The arguments of the launcher that this thread is running, by `kernels.LAUNCHERS`."""

    about: About = ()


noted = _Noted()


class _Room(threading.local):
    """The splits that a decode file made room for in the launcher that this thread is running."""

    splits: int = 0


_room = _Room()


@contextmanager
def decode_room(splits: int) -> Iterator[None]:
    """Mark the launches within: a file's table gave them their splits, with room for so many."""
    _room.splits = splits
    try:
        yield
    finally:
        _room.splits = 0


def note_launcher(launcher: Run, names: Sequence[str]) -> Run:
    """Return a hook around an engine's launcher that keeps its parameters `names` in `noted`."""
    read = reader(launcher, names)

    def around(original: Run, *args: object, **kwargs: object) -> object:
        noted.about = read(args, kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            noted.about = ()

    return around


def reader(launcher: Run, names: Sequence[str]) -> Callable[[_Args, _Kwargs], About]:
    """Return a function that reads parameters from a launcher's arguments, tensors by their
    shapes.
    """
    known = inspect.signature(launcher).parameters
    places = {name: place for place, name in enumerate(known)}
    usual = {n: p.default for n, p in known.items() if p.default is not p.empty}
    # A parameter that this release does not have is None.
    wanted = [(name, places.get(name, len(places)), usual.get(name)) for name in names]

    def read(args: _Args, kwargs: _Kwargs) -> About:
        many = len(args)
        found = [
            args[place] if place < many else kwargs.get(name, default)
            for name, place, default in wanted
        ]
        return tuple([getattr(one, "shape", one) for one in found])

    return read


class _Change(NamedTuple):
    """The changes to a cached launch."""

    grid: Grid
    tuned: _Kwargs
    engines: _Kwargs  # the engine's values of the same arguments
    refusable: tuple[ProblemKey, Config]


class TunedLaunches:
    """The launches of a kernel; `stand_in` makes the object that replaces the kernel."""

    def __init__(self, kernel: KernelSignature, jitted: Jitted, *, paged: bool = True) -> None:
        """Prepare the launches. No launch is changed until `use` is called.

        `jitted`: the engine's kernel. `paged`: the engine's launcher takes a page size.
        """
        self.kernel = kernel
        self.jitted = jitted
        self._paged = paged
        self._names: Sequence[str] = jitted.arg_names
        parameters = inspect.signature(jitted.fn).parameters.values()
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._files: dict[ProblemKey, AttentionFile] = {}
        self._compiled: set[ProblemKey | None] = set()
        self._readers: dict[tuple[int, int], _Reader] = {}  # by the number of args and of kwargs
        self._decided: dict[object, _Change | None] = {}
        self._refused: set[tuple[ProblemKey, Config]] = set()  # by Triton

    def use(self, files: Sequence[AttentionFile]) -> None:
        """Give launches of these files' problems the files' constants from now on.

        Kernels without pages run the same for all page sizes, so the file of the smallest serves.
        """
        fitting = [file for file in files if self.kernel.part in file.problem.parts]
        self._files = {}
        for file in sorted(fitting, key=lambda file: file.problem.page_size):
            self._files.setdefault(problem_key(self.kernel, file.problem, paged=self._paged), file)
        self._compiled = set()
        self._decided = {}
        self._refused = set()

    def at(self, grid: Any) -> Run:  # noqa: ANN401  # the engine's
        """Return the function that `kernel[grid]` returns, which launches the kernel."""
        run = self.jitted.run

        def launch(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401
            # There are many arguments: to stay cheap, read few of them and copy them only once.
            try:
                read = self._readers[len(args), len(kwargs)]
                key = grid, noted.about, _room.splits, read(args, kwargs)
                change = self._decided[key]
            except Exception:  # not decided yet, or an unsupported launch
                key, change = self._decide(grid, args, kwargs)
            if change is None:
                return run(*args, grid=grid, warmup=False, **kwargs)
            kwargs.update(change.tuned)
            try:
                return run(*args, grid=change.grid, warmup=False, **kwargs)
            except Exception as error:
                # Triton raises its errors (mostly: out of shared memory) before it launches, so
                # the engine's constants can take over. After a CUDA error the kernel may have run.
                if not _is_tritons(error):
                    raise
                self._refused.add(change.refusable)
                self._decided = {}
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
            key = grid, noted.about, _room.splits, self._readers[arranged](args, kwargs)
            self._decided[key] = None
            change = self._change(grid, args, kwargs)
            self._decided[key] = change
        except Exception:  # the tuner must not make a launch fail
            log.debug("tuner attention: %s is left alone", self.kernel.name, exc_info=True)
        return key, change

    def _reader(self, args: _Args, kwargs: _Kwargs) -> _Reader:
        """Return a function that reads the decisive arguments from launches with this
        arrangement.
        """
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
        found = launch_key(self.kernel, launch, grid, noted.about, _room.splits)
        file = self._files.get(found) if found else None
        if (
            found is None
            or file is None
            or any(n not in self._names and n not in _PASSED for n in kwargs)
        ):
            return None
        entry = file.pick(self.kernel.part, grid[0], self._longest())
        if found not in self._compiled:
            self._compiled.add(found)
            self._compile(file, grid, args, kwargs)
        # Nothing was faster here: keep the engine's own constants, even if they have changed since.
        if entry is None or entry.status is Status.INCUMBENT:
            return None
        if (found, entry.config) in self._refused:
            return None
        new_grid = tuned_grid(self.kernel, launch, grid, entry.config, self._longest())
        tuned = self._constants(entry.config)
        # An argument passed by position cannot be replaced by name: the KeyError stops the change.
        engines = {name: kwargs[name] for name in tuned}
        return _Change(new_grid, tuned, engines, (found, entry.config)) if new_grid else None

    def _compile(self, file: AttentionFile, grid: Grid, args: _Args, kwargs: _Kwargs) -> None:
        """Compile the file's configurations without launching them.

        The first launch is part of a server's warm-up; users wait for later launches.
        """
        for constants in self._variants(file):
            changed = {**kwargs, **constants}
            try:
                self.jitted.run(*args, grid=grid, warmup=True, **changed)
            except Exception:  # the launch will report it again
                log.debug("tuner attention: %s did not compile", constants, exc_info=True)

    def _variants(self, file: AttentionFile) -> list[dict[str, int]]:
        """Return the constants that launches of the file's problem may have."""
        if file.splits is None or self.kernel.part is not AttentionPart.REDUCE:
            return [self._constants(config) for config in file.configs(self.kernel.part)]
        return [  # the second kernel's loop has a constant number of turns
            {**self._constants(entry.config), "MAX_KV_SPLITS": row.room}
            for entry in file.entries
            if entry.part is AttentionPart.REDUCE
            and not (row := file.splits.row(entry.batch_size)).engines
        ]

    def _constants(self, config: Config) -> dict[str, int]:
        constants = {name: bool(v) if name in FLAGS else v for name, v in config.items()}
        for leader, follower in FOLLOWERS.items():
            if leader in constants and follower in self._names:
                constants[follower] = constants[leader]
        return constants

    def _longest(self) -> int:
        """Return the new tokens of the longest sequence; 1 for decode. Raises ValueError if not
        known.
        """
        if self.kernel.part in (AttentionPart.DECODE, AttentionPart.REDUCE):
            return 1
        (tokens,) = noted.about
        if type(tokens) is not int or tokens < 1:
            raise ValueError(f"{tokens!r} new tokens")
        return tokens


class _Forwarding(type):
    """The type of a class that has all attributes of its kernel."""

    jitted: Jitted

    def __getattr__(cls, name: str) -> object:
        return getattr(cls.jitted, name)


def stand_in(launches: TunedLaunches) -> type:
    """Return a class that replaces the kernel: `stand_in[grid](...)` launches it.

    It is a class because sglang's registry installs classes unchanged. A function around the
    kernel's `run` would copy all arguments of a launch twice more.
    """
    kernel = launches.jitted
    return _Forwarding(
        launches.kernel.name, (), {"jitted": kernel, "__class_getitem__": launches.at}
    )


def _getter(keys: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return an `itemgetter` that always returns a tuple."""
    if not keys:
        return lambda source: ()
    if len(keys) == 1:
        only = keys[0]
        return lambda source: (source[only],)
    return itemgetter(*keys)


def _is_tritons(error: Exception) -> bool:
    from triton.errors import TritonError  # noqa: PLC0415  # only servers need triton

    return isinstance(error, TritonError)
