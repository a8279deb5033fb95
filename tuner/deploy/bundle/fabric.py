"""A node's script that measures the network between nodes, in the engine's image or installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

from tuner.deploy.bundle.scripts import SHOW, quoted, script_head, uses_rdma
from tuner.deploy.cluster import Cluster

MOUNTED_BUNDLE = "/opt/tuner/bundle"

_OPTIONS = r"""
print=no bare=no
while [[ ${1-} == --print || ${1-} == --bare ]]; do
  if [[ $1 == --print ]]; then print=yes; else bare=yes; fi
  shift
done
case "${1-}" in
  expect | serve | bandwidth | all-reduce) ;;
  *)
    printf 'usage: %s [--bare] [--print] expect | serve | bandwidth HOST | all-reduce\n' "$0" >&2
    exit 2
    ;;
esac
bundle=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
"""
_LAUNCH = r"""
script=$bundle/fabric.py
run=()
if [[ $bare == no ]]; then
  script={mounted}/fabric.py
  run=(
{container}
  )
else
{exports}
fi
python=(python3)
if [[ $1 == all-reduce ]]; then
  python+=(
    -m torch.distributed.run --nnodes {nodes} --node-rank {rank} --nproc-per-node {gpus}
    --rdzv-backend static --master-addr {head} --master-port {port}
  )
fi
launch=("${{run[@]}}" "${{python[@]}}" "$script" "$@")
if [[ $print == yes ]]; then show "${{launch[@]}}"; else exec "${{launch[@]}}"; fi
"""


def fabric_program() -> bytes:
    """The Python program that the scripts run; equal for all bundles."""
    return resources.files("tuner.deploy").joinpath("fabric.py").read_bytes()


def fabric_script(cluster: Cluster, rank: int, environment: Mapping[str, str]) -> str:
    """The script of one node. In a container, perftest must be in the image."""
    node = cluster.nodes[rank]
    words = ["docker run --rm --init --gpus all --network host --ipc host --cap-add IPC_LOCK"]
    words += ["--ulimit memlock=-1 --ulimit stack=67108864"]
    if uses_rdma(cluster, environment):
        words.append("--device /dev/infiniband")
    words.append(f'--volume "$bundle:{MOUNTED_BUNDLE}:ro"')
    settings = [quoted(f"{name}={value}") for name, value in environment.items()]
    words += [f"--env {setting}" for setting in settings]
    words += ["--entrypoint /usr/bin/env", quoted(cluster.engine.image)]
    exports = [f"  export {setting}" for setting in settings] or ["  :"]
    image = cluster.engine.image
    title = f"{cluster.name}: {node.name}, the network's bandwidth beside what it can carry."
    body = _LAUNCH.format(
        mounted=MOUNTED_BUNDLE,
        container="\n".join(f"    {line}" for line in words),
        exports="\n".join(exports),
        nodes=len(cluster.nodes),
        rank=rank,
        gpus=node.gpus,
        head=quoted(cluster.nodes[0].host),
        port=cluster.ports.rendezvous,
    )
    alone = "" if image else "\nbare=yes  # the cluster file names no image\n"
    return f"{script_head(title)}{_OPTIONS}{alone}{SHOW}{body}"
