"""Give choices to a server's launches of the kernels of chunked scans.

A kernel that an engine tunes itself is launched by Triton's `Autotuner.run`, and any other kernel
by `JITFunction.run`. This module replaces `run` on the kernel object: if a file has a choice for a
launch, the jitted function runs with the choice at once, else the old `run` does. A choice that
cannot be launched is logged and never tried again. This module needs only the standard library,
because it runs inside servers.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.engines.after_import import after_import
from tuner.export.file_checks import RuntimeFacts, check_with, log_items
from tuner.families.scans.files import ScanFile, find_scan_files, read_scan_file
from tuner.families.scans.scan import Key, Scan, ScanKernel, TunedKernel
from tuner.families.scans.sources import ScanSources
from tuner.problems.points import Config
from tuner.problems.results import Status

log = logging.getLogger("tuner.plugin")

_VLLM_LAUNCH = "launch_autotuned"  # keeps an autotuner's first choice, and calls no `run` again


@dataclass
class ScanChoices:
    """The choices of the files under a root, for this process and a family. Files are read at the
    first launch: by then the GPU is chosen.
    """

    scan: Scan
    root: Path
    facts: Callable[[], RuntimeFacts]
    _answers: dict[tuple[str, Key, int], dict[str, int] | None] = field(default_factory=dict)
    _refused: set[tuple[ScanKernel, Config]] = field(default_factory=set)
    _said: set[str] = field(default_factory=set)
    _problems: set[str] = field(default_factory=set)  # of this process, by their specs

    def config(self, part: ScanKernel, named: Mapping[str, Any]) -> dict[str, int] | None:
        """Return the choice for a launch with these arguments; None: the engine decides. Never
        raises.
        """
        try:
            seen = self.scan.kernels[part].seen(named)
            if seen is None:
                return None
            key, length = seen
            asked = part.value, key, length  # an enum's own hash is slow
            if asked not in self._answers:
                found = self._find(part, key, length)
                self._answers[asked] = None if found is None else dict(found)
            return self._answers[asked]
        except Exception:
            self._say(f"{part.value}: left alone, because its launch is not understood")
            log.debug("tuner scan", exc_info=True)
            return None

    def refuse(self, part: ScanKernel, config: Config, error: Exception) -> None:
        """Stop using a choice that could not be launched."""
        self._refused.add((part, config))
        self._answers.clear()
        text = " ".join(str(error).split())[:300]
        self._say(f"{part.value}: {config.key} cannot be launched here, and is left out: {text}")

    def _find(self, part: ScanKernel, key: Key, length: int) -> Config | None:
        file = self._file(part, key)
        if file is not None:
            tuned = self.scan.kernels[part]
            tokens = tuned.tokens or (lambda problem, chunks: chunks * problem.chunk_size)
            entry = file.pick(part, tokens(file.problem, length))
            tried = entry is not None and (part, entry.config) not in self._refused
            if entry is not None and entry.status is not Status.INCUMBENT and tried:
                return entry.config
        self._say(f"{part.value}: no choice for {(part.value, *key)}, so the engine decides")
        return None

    def _file(self, part: ScanKernel, key: Key) -> ScanFile | None:
        """Return the file whose problem a launch belongs to; None if no file or more than one may
        be it.
        """
        tuned = self.scan.kernels[part]
        fitting = [file for file in self._files if tuned.shows(file.problem) == key]
        if tuned.tokens or len(fitting) > 1:  # this kernel does not tell; others of the chain do
            fitting = [file for file in fitting if file.problem.spec() in self._problems]
        elif fitting and (spec := fitting[0].problem.spec()) not in self._problems:
            self._problems.add(spec)
            self._answers.clear()
        return fitting[0] if len(fitting) == 1 else None

    @cached_property
    def _files(self) -> list[ScanFile]:
        try:
            facts = self.facts()
            paths = find_scan_files(self.root, self.scan.name)
            checks = [check_with(path, read_scan_file, facts, lambda file: "") for path in paths]
        except Exception:
            log.exception("tuner scan: nothing is applied")
            return []
        if items := log_items("scan", checks):
            self._say("; ".join(items))
        return [check.file for check in checks if check.file and check.used]

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.info("tuner scan: %s", text)


def hook_module(module: ModuleType, choices: ScanChoices) -> None:
    """Hook the kernels that a module of an engine defines."""
    hooked = {}
    for part, tuned in choices.scan.kernels.items():
        for name in dict.fromkeys(name for call in tuned.calls for name in call.kernels):
            kernel = vars(module).get(name)
            if kernel is not None and _jitted(kernel).__module__ == module.__name__:
                hook_kernel(kernel, part, choices)
                hooked[id(kernel)] = part
    if hooked and (launch := vars(module).get(_VLLM_LAUNCH)):
        vars(module)[_VLLM_LAUNCH] = _around_launch(launch, hooked, choices)


class Arguments(Mapping[str, Any]):
    """The arguments of a launch by name. If a server waits for the host, a dictionary of all
    arguments at each launch costs 3 % of the time to the first token.
    """

    __slots__ = ("_args", "_kwargs", "_places")

    def __init__(
        self, places: Mapping[str, int], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._places, self._args, self._kwargs = places, args, kwargs

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        named = self._kwargs
        if name in named:
            return named[name]
        place = self._places[name]
        if place >= len(self._args):
            raise KeyError(name)
        return self._args[place]

    def __iter__(self) -> Iterator[str]:
        return iter({**dict(zip(self._places, self._args, strict=False)), **self._kwargs})

    def __len__(self) -> int:
        return len(self._args) + len(self._kwargs)


def hook_kernel(kernel: Any, part: ScanKernel, choices: ScanChoices) -> None:  # noqa: ANN401
    """Replace `run` of an `Autotuner` or a `JITFunction`, which `Heuristics` may wrap."""
    jitted = _jitted(kernel)
    while not hasattr(kernel, "configs") and kernel is not jitted:
        kernel = kernel.fn
    decide, launch = kernel.run, jitted.run
    alike = _common_arguments(kernel, choices.scan.kernels[part])
    places = {name: place for place, name in enumerate(jitted.arg_names)}

    def run(*args: object, **kwargs: object) -> object:
        config = choices.config(part, Arguments(places, args, kwargs))
        if config is None:
            return decide(*args, **kwargs)
        try:
            return launch(*args, **{**alike, **kwargs, **config})
        except Exception as error:  # out of shared memory, or a compiler's refusal
            choices.refuse(part, Config(config), error)
            return decide(*args, **kwargs)

    kernel.run = run


def _common_arguments(kernel: Any, tuned: TunedKernel) -> dict[str, int]:  # noqa: ANN401
    """Return the arguments that all configurations of an `Autotuner` share besides the tuned
    ones.
    """
    listed = [one.kwargs for one in getattr(kernel, "configs", ())]
    first = listed[0] if listed else {}
    names = [name for name in first if name not in tuned.blocks]
    return {n: first[n] for n in names if all(config.get(n) == first[n] for config in listed)}


def _jitted(kernel: Any) -> Any:  # noqa: ANN401
    """Return the `JITFunction` within an `Autotuner` or `Heuristics`, or the kernel itself."""
    while hasattr(kernel, "configs") or hasattr(kernel, "values"):
        kernel = kernel.fn
    return kernel


def _around_launch(
    original: Callable[..., None], hooked: Mapping[int, ScanKernel], choices: ScanChoices
) -> Callable[..., None]:
    def launch(kernel: Any, grid: object, **kwargs: object) -> None:  # noqa: ANN401
        part = hooked.get(id(kernel))
        if part is None or choices.config(part, kwargs) is None:
            original(kernel, grid, **kwargs)
        else:
            kernel[grid](**kwargs)

    return launch


def hook_sources(
    sources: ScanSources, package: str, root: Path, facts: Callable[[str], RuntimeFacts]
) -> None:
    """Give the files under a root to the kernels of an engine when their modules are imported.

    `package`: the engine's. `facts`: about this process, for a family.
    """
    for family, folders in sources.folders.items():
        if not find_scan_files(root, family):
            continue
        choices = ScanChoices(sources.scan(family), root, partial(facts, family))
        files = dict.fromkeys(tuned.file for tuned in choices.scan.kernels.values())
        for folder, file in itertools.product(folders, files):
            name = f"{package}/{folder}/{file.removesuffix('.py')}".replace("/", ".")
            after_import(name, partial(hook_module, choices=choices))
