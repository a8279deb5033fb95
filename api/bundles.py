"""Bundles for clusters whose cluster.toml a client sends."""

from __future__ import annotations

import re

from tuner.deploy.bundle.build import Bundle, build_bundle
from tuner.deploy.bundle.verify import check_bundle
from tuner.deploy.cluster import Cluster
from tuner.deploy.cluster_file import parse_cluster
from tuner.devices.table import Device
from tuner.engines.engine import find_engine
from tuner.errors import MalformedCluster
from tuner.store import Store


def read_posted(text: str) -> Cluster:
    """The cluster of a posted cluster.toml. Raises MalformedCluster.

    It may not name a config.json: that would be a file of this server.
    """
    cluster = parse_cluster(text)
    if cluster.model.config is not None:
        raise MalformedCluster(
            "model.config names a file, which a server does not read: leave it out and give "
            "model.name a preset's name, or run `tuner bundle`",
        )
    if not re.fullmatch(r"[A-Za-z0-9.+!_-]*", cluster.engine.release):
        raise MalformedCluster(f"engine.version is like 0.5.16, not {cluster.engine.release!r}")
    return cluster


def make_bundle(
    store: Store, cluster: Cluster, device: Device, *, allow_predicted: bool, allow_missing: bool
) -> Bundle:
    """The bundle of what is stored now, without a signature.

    Raises UnknownEngine, ExportRefused and MalformedCluster, as `build_bundle` does.
    """
    engine = find_engine(cluster.engine.spec)
    winners = store.winners(device=device.name, engine=engine.name, engine_version=engine.version)
    built = build_bundle(
        winners,
        cluster,
        engine,
        device,
        allow_predicted=allow_predicted,
        allow_missing=allow_missing,
    )
    check_bundle(built.archive)  # `tuner bundle verify` must accept every bundle that is sent
    return built
