"""From what a user asks for to a plan: everything is checked before a server is started."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tuner.deploy.served.dummy_model import write_dummy_model
from tuner.deploy.served.flags import (
    Advised,
    advised_for,
    exported_problems,
    files_hash,
    tuned_files,
)
from tuner.deploy.served.loads import parse_loads
from tuner.deploy.served.process import free_ports
from tuner.deploy.served.prove import ProofPlan, ProofRequest
from tuner.deploy.served.report import Subject
from tuner.deploy.served.rounds import AFTER, BEFORE
from tuner.devices.here import asked_here
from tuner.devices.table import Device, find_device
from tuner.engines.engine import parse_spec
from tuner.engines.locate import PackageSource, find_packages
from tuner.engines.server import server_of
from tuner.errors import (
    BadInput,
    MeasurerUnavailable,
    UnknownDevice,
    UnknownEngine,
    UnwritableOutput,
)
from tuner.export.export import WinnerStore
from tuner.models.table import class_of

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
def plan_of(request: ProofRequest, store: WinnerStore) -> Iterator[ProofPlan]:
    """The plan; a dummy model's folder exists for as long as it does.

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
        advised = advised_for(exported, winners, device, package, both, class_of(request.model))
    args = {BEFORE: [*both, *before], AFTER: [*advised.added_to(both), *after]}
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
        yield ProofPlan(
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


def _refuse_numbers(request: ProofRequest) -> None:
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
            f"{name} is not installed in this Python: run `tuner prove --server` where it serves, "
            "with engine-tuner installed beside it"
        )
    version = found[0].version
    if wanted not in (None, version):
        raise UnknownEngine(
            f"{name} {version} is installed in this Python, and not {wanted}: give --engine "
            f"{name}=={version}, or run this where {wanted} is installed"
        )
    return Installed(name, version)


def _words(request: ProofRequest) -> list[list[str]]:
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


def _weights_text(request: ProofRequest) -> str:
    if not request.dummy:
        return "the model's"
    return "dummy" if request.layers is None else f"{request.layers} layers of dummy"


def _model(request: ProofRequest, made: Path) -> tuple[str, int]:
    """(what the engine is given, the bytes of its weights; 0 where they are not known)"""
    path = Path(request.model)
    if not request.model:
        raise BadInput("--server needs a model: its folder, or its name on the hub")
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
