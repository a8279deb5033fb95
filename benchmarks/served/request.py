"""From what a user asks for to a setup: everything is checked before a server is started."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.served.compare import ComparisonRequest, ComparisonSetup
from benchmarks.served.dummy_model import write_dummy_model
from benchmarks.served.loads import AFTER, BEFORE, parse_loads
from benchmarks.served.process import free_ports
from benchmarks.served.result import Subject
from benchmarks.served.server import server_of
from tuner.deploy.load_proof import read_deployed
from tuner.devices.here import asked_here
from tuner.devices.table import Device, find_device
from tuner.engines.config_files import PROVENANCE
from tuner.engines.engine import PackageSource, find_packages, parse_spec
from tuner.engines.settings import flags_of, of_model
from tuner.errors import (
    BadInput,
    MeasurerUnavailable,
    UnknownDevice,
    UnknownEngine,
    UnwritableOutput,
)
from tuner.export.advice import Verdict, advise_all
from tuner.export.selection import with_shipped
from tuner.problems.results import Winner
from tuner.shell import command_line
from tuner.store.results import ResultStore


def tuned_files(root: Path, device: str) -> dict[str, bytes]:
    """The tuned files for a device under a folder that `tuner export` wrote, by their paths.

    Raises BadInput where there is none.
    """
    paths = read_deployed(root).tuned if root.is_dir() else {}
    mine = [path for path in paths if f"device_name={device}" in path]
    if not mine:
        run = command_line("tuner", "export", "--device", device)
        raise BadInput(
            f"nothing exported for {device} under {root}: run `{run}` first, or name its folder "
            "with --out"
        )
    return {path: (root / path).read_bytes() for path in mine}


def exported_problems(root: Path) -> frozenset[str]:
    """The problems whose files are under a folder, as their sidecars name them."""
    specs = set()
    for path in (root / PROVENANCE).rglob("*.json"):
        try:
            specs.add(str(json.loads(path.read_bytes())["problem"]))
        except (ValueError, KeyError, TypeError):
            continue  # no sidecar of this tool
    return frozenset(specs)


def files_hash(files: Mapping[str, bytes]) -> str:
    """The sha256 of the files' paths and contents."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path} {hashlib.sha256(files[path]).hexdigest()}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Advised:
    """What the stored times of the exported problems advise, besides the files."""

    flags: Mapping[str, str] = field(default_factory=dict)  # "": to be left out
    notes: Sequence[str] = ()  # problems whose files no server reads as it is started
    needs: Mapping[str, str] = field(default_factory=dict)  # without which no server starts

    @property
    def variables(self) -> dict[str, str]:
        return {name: value for name, value in self.flags.items() if not _is_flag(name)}

    def added_to(self, words: Sequence[str]) -> list[str]:
        """The words of a command line, with these flags in place of what they say of them."""
        return _added(self.flags, self.needed_in(words))

    def needed_in(self, words: Sequence[str]) -> list[str]:
        """The words with the flags that a server needs also without files."""
        return _added(self.needs, words)


def advised_for(
    exported: Collection[str],
    winners: Sequence[Winner],
    device: Device,
    engine: tuple[str, str],
    words: Sequence[str],
    model: str = "",
) -> Advised:
    """What is advised for servers of an engine that are started with these words.

    `exported` are the texts of the problems that have files, and `winners` are theirs;
    `model` is the model's folder or name.
    """
    flags: dict[str, str] = {}
    needs: dict[str, str] = {}
    notes: list[str] = []
    if winners:
        flags_given = of_model(flags_of(words), model) if model else flags_of(words)
        for one in advise_all(with_shipped(winners), device, engine, flags_given):
            if one.verdict is Verdict.LEAVE:
                notes.append(f"files that are not advised for these servers: {one}")
            (needs if one.presumed else flags).update(one.flags)
    unknown = len(exported) - len({winner.problem for winner in winners})
    if unknown:
        notes.append(
            f"the store has no times of {unknown} of {len(exported)} exported problems, so nothing "
            "is advised for these: --after-args can give the flags that their files need"
        )
    return Advised(flags, tuple(notes), needs)


def _added(flags: Mapping[str, str], words: Sequence[str]) -> list[str]:
    mine = {name: value for name, value in flags.items() if _is_flag(name)}
    given = [word for name, value in mine.items() if value for word in (name, value)]
    return [*_without(words, mine), *given]


def _is_flag(name: str) -> bool:
    return name.startswith("--")


def _without(words: Sequence[str], flags: Collection[str]) -> Iterator[str]:
    """The words that are neither one of the flags nor its value."""
    dropping = False
    for word in words:
        name, equals, _ = word.partition("=")
        dropping = name in flags if _is_flag(name) else dropping
        if not dropping:
            yield word
        dropping = dropping and _is_flag(name) and not equals


_QUERY = "index,name,driver_version,memory.total,memory.free"
_LIMIT_S = 60  # without persistence mode it takes tens of seconds


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    index: int
    name: str  # e.g. NVIDIA H100 80GB HBM3
    driver: str
    total_mib: int
    free_mib: int


def read_gpus() -> list[Gpu]:
    """The GPUs of this machine. Raises MeasurerUnavailable where there is none."""
    try:
        found = [[word.strip() for word in one.split(",")] for one in asked_here(_QUERY, _LIMIT_S)]
        gpus = [
            Gpu(int(index), name, driver, int(total), int(free))
            for index, name, driver, total, free in found
        ]
    except ValueError:
        gpus = []
    if not gpus:
        raise MeasurerUnavailable(
            "no GPU here: nvidia-smi names none. Run this on the machine that serves; a container "
            "needs the GPUs (`--gpus all`)"
        )
    return gpus


class Installed(NamedTuple):
    """The engine that this Python imports."""

    name: str
    version: str


@contextmanager
def setup_of(request: ComparisonRequest, store: ResultStore) -> Iterator[ComparisonSetup]:
    """The setup; a dummy model's folder exists for as long as it does.

    The server without the files is started with the user's flags alone. The other one also gets
    what the store's times of the exported problems advise, unless the user says its flags.

    Raises BadInput, MeasurerUnavailable or UnwritableOutput, which name the next step.
    """
    device, loads = find_device(request.device), parse_loads(request.loads)
    _refuse_numbers(request)
    name, version = package = _installed(request.engine)
    files = tuned_files(request.root, device.name)
    server = server_of(name)
    exported = exported_problems(request.root)
    stored = store.winners(device=device.name, engine=name, engine_version=version)
    winners = [winner for winner in stored if winner.problem.spec() in exported]
    both, before, after = _words(request)
    advised = Advised()
    if not after:
        advised = advised_for(exported, winners, device, package, both, request.model)
    args = {
        BEFORE: [*advised.needed_in(both), *before],
        AFTER: [*advised.added_to(both), *after],
    }
    assigned = [f"{name}={value}" for name, value in advised.variables.items()]
    gpus = _gpus(device, request.tp)
    free_ports(2, request.port)
    subject = Subject(
        model=_name(request.model),
        device=device.name,
        engine=name,
        engine_version=version,
        driver=gpus[0].driver,
        tp=request.tp,
        weights=_weights_text(request),
        files=files_hash(files),
        before_args=shlex.join(args[BEFORE]),
        after_args=shlex.join([*assigned, *args[AFTER]]),
        rounds=request.rounds,
    )
    with TemporaryDirectory(prefix="tuner-model-") as made:
        model, weights_bytes = _model(request, Path(made))
        folder = _made(request.folder)
        shares = server.memory_shares
        in_turn = request.in_turn or not fits_twice(gpus, weights_bytes, request.tp, shares)
        yield ComparisonSetup(
            subject,
            server,
            replace(request, root=request.root.resolve(), folder=folder),
            model,
            args,
            loads,
            in_turn,
            advised.variables,
            advised.notes,
        )


def _refuse_numbers(request: ComparisonRequest) -> None:
    numbers = {
        "--rounds": request.rounds,
        "--tp": request.tp,
        "--start-timeout": request.timeouts_s[0],
        "--load-timeout": request.timeouts_s[1],
    }
    for flag, number in numbers.items():
        if number <= 0:
            raise BadInput(f"{flag} {number:g}: give a number above 0")
    if request.layers is not None and not request.dummy:
        raise BadInput("--layers is for random weights: add --dummy, or leave it out")


def _installed(spec: str) -> Installed:
    """The engine that this Python imports. Raises UnknownEngine."""
    name, wanted = parse_spec(spec)
    found = [p for p in find_packages(name) if p.source is PackageSource.INSTALLED]
    if not found:
        raise UnknownEngine(
            f"{name} is not installed in this Python: run this where it serves, "
            "with engine-tuner installed beside it"
        )
    version = found[0].version
    if wanted not in (None, version):
        raise UnknownEngine(
            f"{name} {version} is installed in this Python, and not {wanted}: give --engine "
            f"{name}=={version}, or run this where {wanted} is installed"
        )
    return Installed(name, version)


def _words(request: ComparisonRequest) -> list[list[str]]:
    """The flags of both servers, of `before` and of `after`, as words."""
    try:
        return [shlex.split(text) for text in request.args]
    except ValueError as error:
        raise BadInput(f"flags cannot be read ({error}): close each quote") from None


def _gpus(device: Device, tp: int) -> Sequence[Gpu]:
    """The GPUs that the servers use. Raises MeasurerUnavailable."""
    gpus = _visible(read_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    if len(gpus) < tp:
        raise MeasurerUnavailable(f"--tp {tp} needs {tp} GPUs, and this machine shows {len(gpus)}")
    for gpu in gpus[:tp]:
        try:
            found = find_device(gpu.name).name
        except UnknownDevice:
            continue  # the driver's name of a card that is known by another one
        if found != device.name:
            raise MeasurerUnavailable(
                f"GPU {gpu.index} is a {found}, and the files are for {device.name}: give --device "
                f"{found}, or run this on a {device.name}"
            )
    return gpus[:tp]


def fits_twice(gpus: Sequence[Gpu], weights_bytes: int, tp: int, shares: Sequence[float]) -> bool:
    """Whether each of two servers has room for its weights and as much again for its cache."""
    least_bytes = min(gpu.free_mib for gpu in gpus) * 2**20
    return 2 * weights_bytes / tp <= shares[0] * least_bytes


def _visible(gpus: Sequence[Gpu], numbers: str) -> Sequence[Gpu]:
    """The GPUs that a variable shows to the servers, in its order; other spellings show all."""
    words = [word.strip() for word in numbers.split(",")]
    if not all(word.isdecimal() for word in words):
        return gpus
    by_index = {gpu.index: gpu for gpu in gpus}
    return [by_index[int(word)] for word in words if int(word) in by_index]


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableOutput(
            f"cannot make {folder}: {error.strerror}: name another folder with --report"
        ) from None
    return folder.resolve()


def _name(model: str) -> str:
    """What a model is called: the name of its folder or file, or as given."""
    path = Path(model)
    if not model or not path.exists():
        return model
    if path.is_file() and path.name != "config.json":
        return path.stem
    return (path.parent if path.is_file() else path).resolve().name


def _weights_text(request: ComparisonRequest) -> str:
    if not request.dummy:
        return "the model's"
    return "dummy" if request.layers is None else f"{request.layers} layers of dummy"


def _model(request: ComparisonRequest, made: Path) -> tuple[str, int]:
    """(what the engine is given, the bytes of its weights; 0 where they are not known)"""
    path = Path(request.model)
    if not request.model:
        raise BadInput(
            "a model is needed: its folder, its name on the hub, or with --dummy its config.json"
        )
    if request.dummy:
        if not path.exists():
            raise BadInput(
                f"{request.model} is no file here: --dummy needs the model's config.json or its "
                "folder"
            )
        write_dummy_model(path, request.layers, made)
        return str(made), 0
    if path.is_dir():
        sizes = (shard.stat().st_size for shard in path.glob("*.safetensors"))
        return str(path.resolve()), sum(sizes)
    if path.exists() or "/" not in request.model:
        raise BadInput(
            f"{request.model} is neither a model's folder nor a name on the hub, like "
            "Qwen/Qwen3-30B-A3B: name one, or add --dummy for a config.json"
        )
    return request.model, 0
