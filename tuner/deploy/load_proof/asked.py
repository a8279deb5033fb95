"""Find the tuned files of a bundle or a folder that a log's server asks for.

A folder may have files for other GPUs and models, and a server passes them by without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.deploy.load_proof.deployed import Deployed
from tuner.devices.table import find_device
from tuner.engines.engine import supports
from tuner.engines.logs.facts import Facts, facts_of_line
from tuner.engines.logs.served import ENGINES, CompletedHints, Hints
from tuner.errors import BadInput, UnknownDevice
from tuner.export.selection import stored_for
from tuner.models.serving import Serving
from tuner.problems.dtypes import parse_dtype
from tuner.problems.points import Problem
from tuner.problems.registry import families
from tuner.targets import resolve_all

_GIVE = "give the lines of its start, or its launch command, too"


@dataclass(frozen=True)
class Asked:
    """The names of tuned files that a server asks for, and the names that it does not ask for.

    `why` says why nothing is known of all others.
    """

    yes: frozenset[str]
    no: frozenset[str]
    why: str = ""


def asked_of(deployed: Deployed, facts: Facts, named: Collection[str]) -> Asked:
    """Sort the tuned files by the server of a log. `named`: the files in its lines.

    A bundle has the list of its cluster's servers. The server asks for a folder's file if the file
    is for its GPU, and for a problem of its model or for a problem that a line names.
    """
    names, device = frozenset(deployed.names), facts.get("device")
    own = frozenset(name for name in names if _under(name, device) not in names - {name})
    if deployed.asked:
        return Asked(own & deployed.asked, names - (own & deployed.asked))
    here = {name for name in own if not _of_other_gpu(name, device)}
    problems, why = _server_problems(facts, deployed.made_for)
    known = {deployed.problems[name] for name in here if name in deployed.problems}
    mine = stored_for(problems, known)
    mine |= {deployed.problems[name] for name in here.intersection(named, deployed.problems)}
    yes = {name for name in here if deployed.problems.get(name) in {None, *mine}}
    return Asked(frozenset(yes), names - (yes if not why else here), why)


def same_device(one: str, other: str) -> bool:
    """Say whether two names are of the same card."""
    try:
        return find_device(one) == find_device(other)
    except UnknownDevice:
        return one == other


def _under(name: str, device: str) -> str:
    """Return a file's name under the name that the server's driver gives the same card; "" for a
    file of another card.
    """
    named = facts_of_line(f"{name}.json").get("device")
    if not (named and device and same_device(named, device)):
        return ""
    return name.replace(f"device_name={named}", f"device_name={device.replace(' ', '_')}")


def _of_other_gpu(name: str, device: str) -> bool:
    named = facts_of_line(f"{name}.json").get("device")
    return bool(named and device) and not same_device(named, device)


def _server_problems(facts: Facts, made_for: Mapping[str, str]) -> tuple[list[Problem], str]:
    """Return the problems of a log's server, or why they are not known."""
    server = CompletedHints(Hints(), facts)
    name = server.engine_name() or made_for.get("engine", "")
    if name not in ENGINES:
        return [], f"the log names no engine: {_GIVE}"
    if not server.model:
        return [], f"the log names no model: {_GIVE}"
    if not server.tp:
        return [], f"the log does not say the tensor-parallel size: {_GIVE}"
    if not (model := _checkpoint(server.model) or server.target()):
        return [], f"{server.model} is no preset: run this where its config.json is"
    flags = server.flags(name)
    if flags.unread:
        return [], flags.unread
    dtype, options = server.shaped(name)
    serving = Serving(
        engine=name,
        engine_version=server.version(name) or made_for.get("version"),
        device=server.device(),
        tp=server.tp,
        dtype=parse_dtype(dtype) if dtype else None,
        converts=flags.converts,
        options=options,
    )
    try:
        found = resolve_all(model, serving, [one for one in families() if supports(name, one.name)])
    except BadInput as error:
        return [], str(error)
    return [problem for target in found for problem in target.problems], ""


def _checkpoint(model: str) -> str:
    """Return the path of the model's config.json, if the folder that the log names is here; else
    "".
    """
    path = Path(model, "config.json")
    return str(path) if path.is_absolute() and path.is_file() else ""
