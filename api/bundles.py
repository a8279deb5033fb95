"""Build bundles for a posted cluster.toml, one at a time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from functools import lru_cache

from anyio import CapacityLimiter, to_thread

from api.limits import Question
from tuner.deploy.bundle.build import Bundle, build_bundle
from tuner.deploy.cluster import Cluster, parse_cluster
from tuner.devices.table import Device
from tuner.engines.engine import find_engine
from tuner.errors import MalformedCluster
from tuner.store.results import ResultStore

KEPT = 4  # of 1 MB or so


def read_posted(text: str) -> Cluster:
    """Return the cluster of a posted cluster.toml. Raises MalformedCluster.

    The text may not name a config.json: that would be a file of this server.
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
    """The bundle to make."""

    text: str
    cluster: Cluster = field(compare=False)  # that the text describes
    device: Device
    allow_predicted: bool
    allow_missing: bool


class Bundles:
    """Makes bundles one at a time, and keeps the newest for clients that download them later."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self._one_at_a_time, self._question = CapacityLimiter(1), Question()
        self._kept = lru_cache(KEPT)(self._build)

    async def get(self, asked: BundleRequest) -> Bundle:
        """Build the bundle from the winners that are stored now.

        Raises UnknownEngine, ExportRefused and MalformedCluster, as `build_bundle` does.
        """
        limiter = self._one_at_a_time
        return await to_thread.run_sync(self._find, asked, time.monotonic(), limiter=limiter)

    def _find(self, asked: BundleRequest, since: float) -> Bundle:
        engine = find_engine(asked.cluster.engine.spec)
        with self._question.turn(since):
            state = self._store.winners_state(
                device=asked.device.name, engine=engine.name, engine_version=engine.version
            )
            return self._kept(asked, state)

    def _build(self, asked: BundleRequest, _: str) -> Bundle:
        engine = find_engine(asked.cluster.engine.spec)
        winners = self._store.winners(
            device=asked.device.name, engine=engine.name, engine_version=engine.version
        )
        return build_bundle(
            winners,
            asked.cluster,
            engine,
            asked.device,
            allow_predicted=asked.allow_predicted,
            allow_missing=asked.allow_missing,
        )
