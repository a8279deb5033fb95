"""A server's log as lines, for tests of what a load proof reads out of it."""

from collections.abc import Iterable

from tuner.deploy.load_proof import LoadProof, proof_of
from tuner.deploy.load_proof.deployed import UNKNOWN, Deployed


def parse_log(lines: Iterable[str], deployed: Deployed = UNKNOWN) -> LoadProof:
    return proof_of(((str(number), line) for number, line in enumerate(lines, 1)), deployed)
