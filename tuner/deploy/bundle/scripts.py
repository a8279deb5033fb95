"""Write a node's scripts: its launch in a container or installed, and the test of its network.

Every word from the cluster file is quoted for the shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from tuner.deploy.bundle.commands import (
    CARRY_OVER,
    Command,
    has_attention,
    one_line,
    uses_rdma,
)
from tuner.deploy.bundle.manifest import CONFIGS
from tuner.deploy.cluster import Cluster
from tuner.errors import MalformedCluster

MOUNTED = f"/opt/tuner/{CONFIGS}"  # in a container
HUB_CACHE = "/root/.cache/huggingface"
PLUGIN_IMPORT = "-c 'import tuner.bindings.sglang.plugin'"  # arguments of the engine's python3

_HEAD = r"""#!/usr/bin/env bash
# {title}
# --print shows the commands and runs nothing.
set -euo pipefail
"""
_BUNDLE = r"""
bundle=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
"""
_PRINT_OPTION = r"""
print=no
case "${1-}" in
  '') ;;
  --print) print=yes ;;
  *)
    printf 'usage: %s [--print]\n' "$0" >&2
    exit 2
    ;;
esac
"""
SHOW = r"""
show() {
  local word line=
  for word in "$@"; do
    if [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]]; then line+=" $word"; else line+=" ${word@Q}"; fi
  done
  printf '%s\n' "${line# }"
}
"""
_RUN = r"""
run() {
  if [[ $print == yes ]]; then show "$@"; else "$@"; fi
}
"""
_LAST = r"""
last() {
  if [[ $print == yes ]]; then show "$@"; else exec "$@"; fi
}
"""
# Only a warning: without the plugin the engine serves with its own launch constants.
_PLUGIN = r"""
plugin() {
  if [[ $print == yes ]]; then
    show "$@"
  elif ! "$@"; then
    printf 'warning: no engine-tuner beside the engine, so tuned attention is not used: %s\n' \
      "see README.md" >&2
  fi
}
"""
_NO_COLON = r"""
if [[ $bundle == *:* ]]; then
  printf 'error: docker cannot mount a folder with a colon in its name: %s\n' "$bundle" >&2
  exit 2
fi
"""


_LOOK_FOR_RDMA = r"""
rdma=()
if [[ -e /dev/infiniband ]]; then rdma=(--device /dev/infiniband); fi
"""


def script_head(title: str) -> str:
    """Return a script's first lines. `title` must be a single line."""
    return _HEAD.format(title=title)


def docker_script(
    cluster: Cluster,
    rank: int,
    environment: Mapping[str, str],
    commands: list[Command],
    *,
    pointers: Sequence[str],
    carry_over: bool = False,
) -> str:
    """Return the script that runs a node's engine in a container.

    `pointers`: the variables that point at the config folder. `carry_over`: the bundle has a list
    of variables that vLLM's head must not copy. Raises MalformedCluster for a path that docker
    cannot mount.
    """
    node = cluster.nodes[rank]
    words = ["docker run --rm --init", f"--name {quoted(container_name(cluster, rank))}"]
    words += ["--gpus all --network host --ipc host"]
    words += ["--cap-add IPC_LOCK --ulimit memlock=-1 --ulimit stack=67108864"]
    words += ["--ulimit nofile=1048576"]
    look_for_rdma, device = _rdma_device(cluster, environment)
    words += device
    if pointers:
        words.append(f'--volume "$bundle/{CONFIGS}:{MOUNTED}:ro"')
    if carry_over and not rank:
        words.append(f'--volume "$bundle/{CARRY_OVER}:/root/.config/vllm/{CARRY_OVER}:ro"')
    words += model_mounts(cluster)
    variables = {**dict.fromkeys(pointers, MOUNTED), **environment}
    words += [f"--env {quoted(f'{name}={value}')}" for name, value in variables.items()]
    program, *arguments = one_line(commands)
    words.append(f"--entrypoint {quoted(program)}")
    words.append(quoted(cluster.engine.image))
    words += _by_option(arguments)
    title = f"{cluster.name}: {node.name}, rank {rank} of {len(cluster.nodes)}, in a container."
    body = "".join(f"  {line}\n" for line in words)
    check = ""
    if has_attention(pointers):
        look = f"docker run --rm --entrypoint python3 {quoted(cluster.engine.image)}"
        check = f"{_PLUGIN}\nplugin {look} {PLUGIN_IMPORT}\n"
    return (
        f"{script_head(title)}{_PRINT_OPTION}{_BUNDLE}{SHOW}{_LAST}{_NO_COLON}{look_for_rdma}"
        f'{check}\nlaunch=(\n{body})\nlast "${{launch[@]}}"\n'
    )


def _rdma_device(cluster: Cluster, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return (lines of a script, docker's arguments) for RDMA devices.

    docker refuses a device that does not exist, as it should if RDMA is asked for by name.
    """
    if not uses_rdma(cluster, environment):
        return "", []
    if "NCCL_IB_HCA" in environment or "FI_PROVIDER" in environment:
        return "", ["--device /dev/infiniband"]
    return _LOOK_FOR_RDMA, ['${rdma[@]+"${rdma[@]}"}']


def bare_script(
    cluster: Cluster,
    rank: int,
    environment: Mapping[str, str],
    commands: list[Command],
    *,
    pointers: Sequence[str],
) -> str:
    """Return the script that runs the engine installed on a node."""
    node = cluster.nodes[rank]
    title = (
        f"{cluster.name}: {node.name}, rank {rank} of {len(cluster.nodes)}, without a container."
    )
    lines = [f'run export "{variable}=$bundle/{CONFIGS}"' for variable in pointers]
    lines += [f"run export {quoted(f'{n}={v}')}" for n, v in environment.items()]
    lines += [_command_line("run", command) for command in commands[:-1]]
    if len(commands) > 1:  # Ray's head stays when the server ends, and refuses the next start
        lines.append("if [[ $print == no ]]; then trap 'ray stop' EXIT; fi")
    lines.append(_command_line("run" if len(commands) > 1 else "last", commands[-1]))
    body = "\n".join(lines)
    check = f"{_PLUGIN}\nplugin python3 {PLUGIN_IMPORT}\n" if has_attention(pointers) else ""
    bundle, last = _BUNDLE if pointers else "", _LAST if len(commands) == 1 else ""
    return f"{script_head(title)}{_PRINT_OPTION}{bundle}{SHOW}{_RUN}{last}{check}\n{body}\n"


def container_name(cluster: Cluster, rank: int) -> str:
    return f"{cluster.name}-{cluster.nodes[rank].name}"


def is_folder(path: str) -> bool:
    """Say whether a model path is a folder on the node; otherwise it is a name on the hub."""
    return path.startswith("/")


def model_mounts(cluster: Cluster) -> list[str]:
    """Return docker's arguments for the model's folder, or for the hub's cache and token.

    Raises MalformedCluster for a folder that docker cannot mount.
    """
    path, inside = cluster.model.path, cluster.model.container_path
    if not is_folder(path):
        return [
            f'--volume "${{HF_HOME:-$HOME/.cache/huggingface}}:{HUB_CACHE}"',
            "--env HF_TOKEN",  # from the operator's shell; never written to a file
        ]
    for field, value in (("path", path), ("container_path", inside)):
        if ":" in value:
            raise MalformedCluster(
                f"model.{field} {value!r}: docker cannot mount a path with a colon"
            )
    return [f"--volume {quoted(f'{path}:{inside}:ro')}"]


def quoted(word: str) -> str:
    """Return a word for the shell, quoted if needed."""
    # shlex does not quote commas, which would look like separators in an array.
    return f"'{word}'" if "," in word and shlex.quote(word) == word else shlex.quote(word)


def _command_line(function: str, command: Iterable[str]) -> str:
    program, *arguments = command
    return " \\\n  ".join([f"{function} {quoted(program)}", *_by_option(arguments)])


def _by_option(words: Iterable[str]) -> list[str]:
    """Return quoted words; each line holds an option with its value."""
    lines: list[str] = []
    for word in words:
        if (
            lines
            and not word.startswith("-")
            and lines[-1].startswith("-")
            and " " not in lines[-1]
        ):
            lines[-1] += f" {quoted(word)}"
        else:
            lines.append(quoted(word))
    return lines


MOUNTED_BUNDLE = "/opt/tuner/bundle"

_OPTIONS = r"""
print=no bare=no
while [[ ${1-} == --print || ${1-} == --bare ]]; do
  if [[ $1 == --print ]]; then print=yes; else bare=yes; fi
  shift
done
case "${1-}" in
  expect | serve | all-reduce) ;;
  bandwidth) : "${2:?bandwidth needs the HOST that serves}" ;;
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
    """Return the Python program that the scripts run; equal for all bundles."""
    return resources.files("tuner.deploy").joinpath("fabric.py").read_bytes()


def fabric_script(cluster: Cluster, rank: int, environment: Mapping[str, str]) -> str:
    """Return the script of a node. In a container, perftest must be in the image."""
    node = cluster.nodes[rank]
    words = ["docker run --rm --init --gpus all --network host --ipc host --cap-add IPC_LOCK"]
    words += ["--ulimit memlock=-1 --ulimit stack=67108864"]
    look_for_rdma, device = _rdma_device(cluster, environment)
    words += device
    words.append(f'--volume "$bundle:{MOUNTED_BUNDLE}:ro"')
    settings = [quoted(f"{name}={value}") for name, value in environment.items()]
    words += [f"--env {setting}" for setting in settings]
    words += ["--entrypoint /usr/bin/env", quoted(cluster.engine.image)]
    exports = [f"  export {setting}" for setting in settings] or ["  :"]
    image = cluster.engine.image
    title = f"{cluster.name}: {node.name}, the network's bandwidth beside the rates of its cards."
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
    no_colon = _NO_COLON.replace("[[ ", "[[ $bare == no && ")
    checks = f"{no_colon}{look_for_rdma}" if image else ""
    return f"{script_head(title)}{_OPTIONS}{alone}{SHOW}{checks}{body}"
