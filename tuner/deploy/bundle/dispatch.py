"""Notes for the operator on which kernels the cluster's servers run, with the cluster's flags."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.deploy.cluster import Cluster
from tuner.devices.table import Device
from tuner.engines.dispatch import engine_runs, flags_of, of_class
from tuner.engines.engine import Engine
from tuner.errors import MalformedCheckpoint, UnknownModel
from tuner.limited_file import read_limited
from tuner.models.fields import MAX_BYTES
from tuner.models.table import class_of, find_preset
from tuner.problems.records import Winner


def server_flags(cluster: Cluster) -> dict[str, str]:
    """The flags and variables of the cluster's servers, and the class of their model.

    Nodes' own variables are left aside.
    """
    ranks = {"--ep-size": str(cluster.parallel.ep)}
    flags = {**cluster.environment, **ranks, **flags_of(cluster.engine.flags)}
    try:
        return of_class(flags, class_of(served_model(cluster)))
    except UnknownModel:
        return flags


def served_model(cluster: Cluster) -> str | bytes:
    """Return the bytes of the model's config.json, or the name of a preset. Raises UnknownModel."""
    model = cluster.model
    if model.config:
        return read_limited(model.config, MAX_BYTES, "config.json", MalformedCheckpoint)
    try:
        return find_preset(model.path.rstrip("/").rpartition("/")[2]).name
    except UnknownModel:
        return find_preset(model.name).name


def served_version(cluster: Cluster, engine: Engine) -> str:
    """The version of the cluster's engine, or that of `engine` where the cluster names none."""
    return cluster.engine.release or engine.version


def dispatch_notes(
    winners: Sequence[Winner], cluster: Cluster, engine: Engine, device: Device
) -> list[str]:
    """One line for each kernel that the problems of the winners run.

    Without a version, the rules of the newest release count that was read.
    """
    problems = (winner.problem for winner in winners)
    version, flags = served_version(cluster, engine), server_flags(cluster)
    answers = engine_runs(cluster.engine.name, version, problems, device, flags)
    return [runs.line() for runs in answers]
