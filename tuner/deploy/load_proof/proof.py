"""Hold the config files that a server's log proves to be loaded, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.deploy.load_proof.asked import Asked, asked_of, same_device
from tuner.deploy.load_proof.deployed import UNKNOWN, Deployed, FileOrigin
from tuner.deploy.load_proof.ranks import numbers_of, unnamed, unseen
from tuner.engines.logs.facts import Facts
from tuner.engines.logs.nccl import Network
from tuner.engines.logs.served import CompletedHints, Hints
from tuner.shell import command_line


def tuning_steps(facts: Facts, logs: Iterator[Path], *, decode: bool) -> Iterator[str]:
    """Yield sentences, and commands that begin with "$ ", for the missing files that `logs` name,
    and with `decode` for decode attention.
    """
    server = CompletedHints(Hints(), facts)
    name = server.engine_name()
    options = server.options(name)
    commands: list[list[str]] = []
    if missing := list(logs):
        if lacks := server.missing(name) or _old(server, name):
            yield f"missing files: {lacks}"
        else:
            commands += [["tune", str(log), *options] for log in missing]
    if decode:
        model = server.target()
        if lacks := server.missing(name, model=True):
            yield f"decode attention: {lacks}"
        else:
            if not model:
                yield f"copy the config.json of {server.model} to this folder"
            of = (model or "config.json", "--family", "attention", "--tp", str(server.tp))
            commands.append(["tune", *of, *options])
    if commands:
        commands.append(["export", *options])
    yield from (f"$ {command_line('tuner', *command)}" for command in commands)


def _old(server: CompletedHints, name: str) -> str:
    """Return a sentence if only "before a release" is known: newer releases look for other
    files.
    """
    before = server.facts.get(f"{name}_before")
    if not before or server.version(name):
        return ""
    return (
        f"The paths are of a release before {name} {before}, and newer releases look for other "
        "files: the command needs the release, which the text does not say."
    )


def other_server(facts: Facts, made_for: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each fact of the log that differs from the server that the files are for."""
    for name, wanted in made_for.items():
        fact = facts.known.get(name)
        if fact is None or _same(name, fact.value, wanted):
            continue
        yield (
            f"the log says {name} {fact.value} ({fact.where}), and the files are for "
            f"{name} {wanted}"
        )


def _same(name: str, said: str, made_for: str) -> bool:
    if name == "device":
        return same_device(said, made_for)
    return said.partition("+")[0] == made_for.partition("+")[0]


_MOST_RANKS = 1 << 16  # of one server: a log may say any number
EVERY_FILE = "every file"
FUSED_MOE, DENSE_GEMM, ATTENTION = "fused_moe", "dense_gemm", "attention"


class LoadOutcome(str, Enum):
    """The origins of a file's configurations, best first."""

    LOADED = "loaded"  # the wanted file
    FALLBACK = "fallback"  # the file of another Triton version
    REUSED = "up file reused"  # no `_down` file: the up file serves both products
    REFUSED = "refused"  # by the plugin: the file is for another problem or environment
    DEFAULT = "default"  # no file: the engine's default
    DETERMINISTIC = "deterministic"  # files are ignored in deterministic inference
    MALFORMED = "malformed"  # by the plugin: the file could not be read
    FAILED = "failed"  # the plugin failed


# A refused file is no problem by itself, because another file may serve.
_GOOD = (LoadOutcome.LOADED, LoadOutcome.REFUSED)
_WITHOUT = (LoadOutcome.FALLBACK, LoadOutcome.REUSED, LoadOutcome.DEFAULT)  # the engine's own


@dataclass(frozen=True)
class FileLoad:
    """The outcome for a config file, in the processes that logged it."""

    family: str  # its registered name; "A and B" if a line is for either
    name: str  # the file's name without .json, e.g. E=256,N=64,device_name=NVIDIA_L40S,...
    outcome: LoadOutcome
    wanted: tuple[str, ...]  # paths looked at
    used: str  # path read, or empty
    triton: str  # Triton version of the file, if the path or the message has it
    ranks: tuple[str, ...]  # as named in the log; empty if it names none
    lines: tuple[str, ...]  # FILE:LINE of each message
    reason: str = ""  # the plugin's
    origin: str = ""  # of the file that was read: tuned, shipped or unknown
    entries: str = ""  # of a tuned file, by status: "36 predicted"
    by_plugin: bool = False  # the tuner's plugin wrote the lines, and not the engine


@dataclass(frozen=True)
class Override:
    """The engine's replacement of the down product's BLOCK_SIZE_M by the up product's."""

    batch_size: int
    down_block_m: int
    up_block_m: int


@dataclass(frozen=True)
class Hook:
    """Hooks of a plugin on a function of the engine."""

    target: str
    count: int  # 0: it failed
    sources: str


@dataclass(frozen=True)
class LoadProof:
    """Everything that a server's log tells about config files, and about its network."""

    loads: tuple[FileLoad, ...]
    overrides: tuple[Override, ...]
    hooks: tuple[Hook, ...]
    network: Network = field(default_factory=Network)
    ready: str = ""  # FILE:LINE that says that the server is ready
    deployed: Deployed = UNKNOWN
    cut: tuple[str, ...] = ()  # FILE:LINE of messages about config files that do not end
    facts: Facts = field(default_factory=Facts)
    logs: tuple[Path, ...] = ()

    @cached_property
    def asked(self) -> Asked:
        """Return the tuned files by whether the server asks for them."""
        return asked_of(self.deployed, self.facts, {load.name for load in self.loads})

    @property
    def ok(self) -> bool:
        """Say whether all tuned files that the server asks for were loaded, at least one, without
        failures.
        """
        return not self.problems()

    def problems(self) -> list[str]:
        """Return a line for each deviation from the tuned files."""
        found = [_trouble(x) for x in self.loads if x.outcome not in _GOOD and not self._spare(x)]
        found += _unserved(self.loads)
        found += [f"hook on {h.target} failed" for h in self.hooks if not h.count]
        found += [
            f"M={o.batch_size}: down BLOCK_SIZE_M {o.down_block_m} replaced by {o.up_block_m}"
            for o in self.overrides
        ]
        outcomes: dict[tuple[str, ...], set[LoadOutcome]] = {}
        for load in self.loads:
            # The plugin looks at a file of this name for each version of Triton.
            path = load.wanted if load.by_plugin else ()
            outcomes.setdefault((load.name, load.family, *path), set()).add(load.outcome)
        found += [f"{name}: ranks disagree" for (name, *_), o in outcomes.items() if len(o) > 1]
        found += unseen(self._ranks(), self._server)
        return [*found, *_untuned(self), *self.unknown(), *_launch(self)]

    @cached_property
    def _server(self) -> Deployed:
        """Return the deployed files; a folder's with the ranks that the server's log says."""
        if self.deployed.ranks:
            return self.deployed
        tp, pp = int(self.facts.get("tp") or 0), int(self.facts.get("pp") or 1)
        ranks = tp * pp if tp * pp <= _MOST_RANKS else 0
        engine = self.facts.get("engine") or self.deployed.engine
        made_for = {**self.deployed.made_for, "engine": engine}
        return replace(self.deployed, ranks=ranks, tp=tp, pp=pp, made_for=made_for)

    def _ranks(self) -> dict[str, set[int]]:
        """Return the numbers of the ranks that were seen to load each tuned file."""
        found: dict[str, set[int]] = {}
        for load in self.loads:
            if load.outcome is LoadOutcome.LOADED and load.origin == FileOrigin.TUNED.value:
                found.setdefault(load.name, set()).update(numbers_of(load.ranks, self._server))
        return found

    def unknown(self) -> list[str]:
        """Return a line for each problem that is only a gap in the log."""
        if not self.loads and not self.cut:
            return [
                "no line names a config file: the kernel was not reached, or INFO is not logged"
            ]
        asked, named = self.asked, {load.name for load in self.loads}
        rest = self.deployed.names - asked.yes - asked.no - named
        return [
            *(f"{where}: a message about a config file is cut" for where in self.cut),
            *(
                f"{load.name}: whether it was tuned is not known: give the bundle before the log"
                for load in self.loads
                if load.outcome is LoadOutcome.LOADED and load.origin == FileOrigin.UNKNOWN.value
            ),
            *(
                f"{name}: whether this server asks for it is not known: {asked.why}"
                for name in sorted(rest)
            ),
        ]

    def notes(self) -> list[str]:
        """Return a line for each kernel that runs without a tuned file, and was meant to have
        none.
        """
        found = [
            f"{load.name}: no tuned file; the engine's own runs"
            for load in self.loads
            if self._spare(load)
        ]
        if self._without_decode():
            found.append("decode attention has no tuned file: the engine's own constants run")
        found += unnamed(self._ranks(), self._server)
        return [*found, *other_server(self.facts, self.deployed.made_for)]

    def steps(self) -> list[str]:
        """Return steps for files that were never made; a command begins with "$ "."""
        made = self.deployed.names
        lines = [
            line
            for load in self.loads
            if load.outcome is LoadOutcome.DEFAULT and not load.by_plugin
            for line in load.lines
            if load.name not in made
        ]
        names = {line.rpartition(":")[0] for line in lines}
        logs = (log for log in self.logs if log.name in names)
        return list(tuning_steps(self.facts, logs, decode=self._without_decode()))

    def _without_decode(self) -> bool:
        """Say whether attention has tuned files, and decode has none."""
        used = [x for x in self.loads if x.family == ATTENTION and x.outcome is LoadOutcome.LOADED]
        return bool(used) and not any(load.name.startswith("decode") for load in used)

    def _spare(self, load: FileLoad) -> bool:
        """Say whether a missing file was never made: a file of a dense GEMM, or of MoE layers if no
        MoE file was made for this server.

        A bundle or folder lists the files that were made. Without it, only vLLM is known, for which
        no dense GEMM's file can be made.
        """
        if load.outcome not in _WITHOUT or load.by_plugin:
            return False
        made = self.deployed.names - self.asked.no
        if load.family != DENSE_GEMM:
            return bool(made) and not any(name.startswith("E=") for name in made)
        if not self.deployed.known:
            return any("/vllm/" in path.replace("\\", "/") for path in load.wanted)
        return load.name not in made

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        network = {**asdict(self.network), "devices": list(self.network.devices)}
        network["control"] = list(self.network.control)
        return {
            "ok": self.ok,
            "problems": self.problems(),
            "notes": self.notes(),
            "steps": [step for step in self.steps() if not step.startswith("$ ")],
            "commands": [step[2:] for step in self.steps() if step.startswith("$ ")],
            "facts": self.facts.as_json(),
            "cut": list(self.cut),
            "loads": [asdict(load) for load in self.loads],
            "overrides": [asdict(override) for override in self.overrides],
            "hooks": [asdict(hook) for hook in self.hooks],
            "network": {**network, "ready": self.ready},
        }


def merged(loads: Iterable[FileLoad]) -> tuple[FileLoad, ...]:
    """Merge messages about the same file and outcome; keep all their ranks and lines."""
    found: dict[tuple[str, ...], FileLoad] = {}
    for new in loads:
        identity = new.family, new.name, new.outcome.value, new.used, new.reason, str(new.by_plugin)
        old = found.get(identity)
        found[identity] = _both(old, new) if old else new
    return tuple(found.values())


def _both(old: FileLoad, new: FileLoad) -> FileLoad:
    ranks = tuple(dict.fromkeys((*old.ranks, *new.ranks)))
    wanted = tuple(dict.fromkeys((*old.wanted, *new.wanted)))
    return replace(old, wanted=wanted, ranks=ranks, lines=(*old.lines, *new.lines))


def _trouble(load: FileLoad) -> str:
    name = f"{load.family}: {load.name}" if load.by_plugin else load.name
    return ": ".join(text for text in (name, load.outcome.value, load.reason) if text)


def _unserved(loads: Iterable[FileLoad]) -> Iterator[str]:
    """Yield a line for each attention phase all of whose files were refused."""
    served: dict[str, list[FileLoad]] = {}
    for load in loads:
        if load.family == ATTENTION and load.outcome in _GOOD:
            served.setdefault(load.name.partition(",")[0], []).append(load)
    for phase, some in served.items():
        if all(load.outcome is LoadOutcome.REFUSED for load in some):
            reasons = dict.fromkeys(load.reason for load in some)
            yield f"{phase}: every file was refused: {'; '.join(reasons)}"


def _untuned(proof: LoadProof) -> Iterator[str]:
    """Yield a line for each file that is not tuned, and for each tuned file not loaded.

    With a bundle, the engine's own files count only if a tuned file has their name: a server may
    have layers that nobody tuned. Tuned files that the server does not ask for do not count.
    """
    if not proof.loads and not proof.cut:
        return
    deployed, asked, names = proof.deployed, proof.asked, proof.deployed.names
    for load in proof.loads:
        shipped = load.outcome is LoadOutcome.LOADED and load.origin == FileOrigin.SHIPPED.value
        if shipped and (load.name in names or not deployed.known):
            yield f"{load.name}: the engine's own file was loaded, not a tuned file"
    silent = names - {load.name for load in proof.loads}
    for name in sorted(silent & asked.yes):
        yield f"{name}: in the bundle, but no line says that it was loaded"
    if names and names == silent & asked.no:
        yield "the bundle has no tuned file that this server asks for"


def _launch(proof: LoadProof) -> Iterator[str]:
    """Yield the reasons against a launch of a bundle's cluster."""
    if not proof.deployed.nodes:
        return
    if not proof.ready:
        yield "no line says that the server is ready"
    if proof.deployed.nodes == 1:
        return
    if not proof.deployed.rdma:
        return
    if proof.network.sockets:
        yield f"NCCL uses TCP sockets between nodes, not RDMA ({proof.network.sockets})"
    elif not proof.network.names:
        yield "no line says which network NCCL uses: start the servers with NCCL_DEBUG=INFO"
