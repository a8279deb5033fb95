"""Bundles for clusters whose cluster.toml a client sends."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from api.exports import PacedTurns
from tuner.deploy.bundle.build import Bundle, build_bundle
from tuner.deploy.bundle.manifest import check_bundle
from tuner.deploy.cluster import Cluster, parse_cluster
from tuner.devices.table import Device
from tuner.engines.engine import find_engine
from tuner.errors import MalformedCluster
from tuner.store import Store

_KEPT = 4  # of 1 MB or so
_REST = 1.0  # after a bundle, other requests have Python's lock for as long as it took


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


@dataclass(frozen=True)
class BundleRequest:
    """Which bundle to make."""

    cluster: Cluster
    device: Device
    allow_predicted: bool
    allow_missing: bool


class Bundles:
    """Makes bundles one at a time, and keeps the newest: who saw one then downloads it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turns = PacedTurns(_REST)
        # What was asked, and the state of the store then. Only the event loop changes it.
        self._kept: deque[tuple[BundleRequest, str, Bundle]] = deque(maxlen=_KEPT)

    async def get(self, asked: BundleRequest) -> Bundle:
        """Build the bundle from the winners that are stored now.

        Raises UnknownEngine, ExportRefused and MalformedCluster, as `build_bundle` does.
        """
        state, found = await self._turns.take(lambda: self._find(asked))
        if all(found is not bundle for _, _, bundle in self._kept):
            self._kept.append((asked, state, found))
        return found

    def _find(self, asked: BundleRequest) -> tuple[str, Bundle]:
        engine, device = find_engine(asked.cluster.engine.spec), asked.device.name
        name, version = engine.name, engine.version
        state = self._store.winners_state(device=device, engine=name, engine_version=version)
        for kept, its_state, bundle in tuple(self._kept):
            if (kept, its_state) == (asked, state):
                return state, bundle
        built = build_bundle(
            self._store.winners(device=device, engine=name, engine_version=version),
            asked.cluster,
            engine,
            asked.device,
            allow_predicted=asked.allow_predicted,
            allow_missing=asked.allow_missing,
        )
        check_bundle(built.archive)  # `tuner bundle verify` must accept every bundle that is sent
        return state, built
