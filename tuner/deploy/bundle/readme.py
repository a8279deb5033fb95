"""The operator's README in a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from tuner.deploy.bundle.commands import endpoint, has_attention
from tuner.deploy.bundle.keys import Keys
from tuner.deploy.bundle.kubernetes import NODE_LABEL, object_name
from tuner.deploy.bundle.manifest import CONFIGS
from tuner.deploy.bundle.scripts import PLUGIN_IMPORT, container_name
from tuner.deploy.cluster import Cluster
from tuner.shell import command_line

_TEXT = """\
# {name}

{model} with {engine} on {nodes} nodes of {gpus} {device}, TP {tp}.

{counts}
{notes}
| the servers ask for | in this bundle |
|---|---|
{keys}

Put this folder at the same place on every node, e.g. `/opt/tuner/{name}`. `sha256sum -c SHA256SUMS`
in it finds what was damaged on the way.

## 1. Preflight

On each node (Python 3.8 or later, nothing to install):

```
{captures}
```

Then, with all captures in one place:

```
{check}
```

It exits with 1 if anything stands against a launch, and says how to mend it. Where it proposes
other variables than the scripts set, bundle again with `--node NAME=DIR` for each capture.
`{variable}` must hold the same files on every node: hash {hash}.

Then the network itself, beside what its cards can carry ({head} is the first node):

```
{serve}   # on {head}; perftest must be installed
{bandwidth}   # on another node
nodes/NAME/fabric.sh all-reduce   # on every node at once
```

{attention}## 2. Launch

`--print` shows the commands and runs nothing. {order}

| node | {columns} |
|---|{rules}|
{launches}
{kubernetes}
## 3. Prove that the tuned files were loaded

```
{logs} > server.log 2>&1
{proof}
```

It tells tuned files from the engine's own and from its defaults{plugin}. It also says
whether NCCL uses RDMA (NET/IB) or TCP (NET/Socket), and whether the server is ready. Then ask it:
`{ask}`.

## 4. Measure

```
./sweep.sh --runs 3 --out after
tuner bench-report BEFORE after
```

The sweep asks {url} for 128 and 256 tokens in and out, 1 to 1024 requests in flight.
Measure BEFORE the same way, without {variables}.

## What is here

| path | what |
|---|---|
| `{configs}/` | what {variables} {points} at; `provenance/`: where each entry comes from |
| `nodes/NAME/` | one node's scripts |
| `preflight.py`, `cluster.json` | the check, and what it holds the nodes against |
| `fabric.py`, `nodes/NAME/fabric.sh` | the test of the network |
| `sweep.sh` | the benchmark |
| `MANIFEST.json`, `SHA256SUMS` | every file's hash; every entry's status and environment |
"""
_ATTENTION = """\
## Before the launch: the plugin for tuned attention

`{configs}/attention/` is read by engine-tuner's plugin, which sglang finds where engine-tuner is
installed; that moves no package of the engine's. {where}

```
{install}
```

Check it with `{check}`.
`docker.sh` and `bare.sh` do, and warn. Without the plugin a server runs all the same, with the
engine's own launch constants. Where it is installed,
`{status}` says what a server would use, and why.

The files count only in servers on the Triton attention backend, and not with
`--enable-deterministic-inference`: they choose by the size of the batch. `--attention-backend`
chooses it for both phases, `--prefill-attention-backend` and `--decode-attention-backend` for one.
Where a server runs another backend by default, that one may be faster: compare before you change
it.

"""
_PIP = "python3 -m pip install --no-cache-dir engine-tuner=={version}"
_IMAGE = """Make an image of the engine's,
name it in `engine.image`, and bundle again; for `bare.sh`, the same `pip install` on every node."""
_PROOF = """, and
names each file that the plugin uses or refuses; if it names none, the plugin is not there"""
_KUBERNETES = """
Kubernetes, with the LeaderWorkerSet controller and NVIDIA's device plugin installed and this folder
at `/opt/tuner/{name}` on each node:

```
{label}     # each node of this cluster
kubectl apply -f kubernetes/leaderworkerset.json
```

Its pods are privileged for /dev/infiniband; with an RDMA device plugin, ask for its resource.
"""


def readme_text(
    name: str,
    cluster: Cluster,
    device: str,
    folder_hash: str,
    statuses: Mapping[str, int],
    notes: Sequence[str],
    keys: Keys,
    no_kubernetes: str,
    *,
    pointers: Sequence[str],
) -> str:
    """The text of README.md. `no_kubernetes` is the reason for no Kubernetes manifest, or empty.

    `pointers`: the variables that point at the config folder.
    """
    attention = has_attention(pointers)
    model = cluster.model.name
    url = f"http://{endpoint(cluster.nodes[0].host, cluster.ports.serve)}"
    return _TEXT.format(
        name=name,
        model=model if "`" in model else f"`{model}`",
        engine=cluster.engine.name,
        nodes=len(cluster.nodes),
        gpus=cluster.nodes[0].gpus,
        device=device,
        tp=cluster.parallel.tp,
        counts=_counts(statuses),
        notes="".join(f"\n> {note}\n" for note in notes),
        keys="\n".join(_key_row(asked, bundled) for asked, bundled in keys.rows()),
        variable=pointers[0],
        variables=" and ".join(f"`{variable}`" for variable in pointers),
        points="points" if len(pointers) == 1 else "point",
        attention=_attention(cluster.engine.image, device) if attention else "",
        plugin=_PROOF if attention else "",
        hash=f"`{folder_hash}`",
        kubernetes=_kubernetes(name, cluster, no_kubernetes),
        url=url,
        ask=command_line("curl", f"{url}/v1/models"),
        proof=command_line("tuner", "load-proof", f"{name}.tar.gz", "server.log"),
        configs=CONFIGS,
        **_node_parts(cluster),
    )


def _key_row(asked: str, bundled: str) -> str:
    return f"| {f'`{asked}`' if asked else '-'} | {_same(asked, bundled)} |"


def _same(asked: str, bundled: str) -> str:
    if asked == bundled:
        return "the same"
    return f"`{bundled}`" if bundled else "**missing**"


def _node_parts(cluster: Cluster) -> dict[str, str]:
    """The parts of the text that list the nodes and how each is captured and launched."""
    names = [node.name for node in cluster.nodes]
    image = cluster.engine.image
    order = "Start the head first, then the others. The first node is the head."
    captured = [word for node in names for word in ("--node", f"{node}=captures/{node}")]
    other = f"nodes/{names[-1]}/fabric.sh"
    return {
        "head": names[0],
        "serve": command_line(f"nodes/{names[0]}/fabric.sh", "serve"),
        "bandwidth": command_line(other, "bandwidth", cluster.nodes[0].host),
        "captures": "\n".join(_capture(cluster, node) for node in names),
        "check": command_line("python3", "preflight.py", "--cluster", "cluster.json", *captured),
        "order": order if len(names) > 1 else "",
        "columns": "container | bare" if image else "bare",
        "rules": "---|---" if image else "---",
        "launches": "\n".join(_launch(node, bool(image)) for node in names),
        "logs": command_line("docker", "logs", container_name(cluster, 0))
        if image
        else command_line(f"nodes/{names[0]}/bare.sh"),
    }


def _kubernetes(name: str, cluster: Cluster, missing: str) -> str:
    if missing:
        return f"\nThere is no Kubernetes manifest: {missing}.\n"
    label = f"{NODE_LABEL}={object_name(cluster.name)}"
    label = command_line("kubectl", "label", "node", "NODE", label)
    return _KUBERNETES.format(name=name, label=label)


def _attention(image: str, device: str) -> str:
    install = _PIP.format(version=version("engine-tuner"))
    run = ("docker", "run", "--rm", "--entrypoint", "python3", image) if image else ("python3",)
    return _ATTENTION.format(
        configs=CONFIGS,
        where=_IMAGE if image else "On every node:",
        install=f"FROM {image}\nRUN {install}" if image else install,
        check=f"{command_line(*run)} {PLUGIN_IMPORT}",
        status=command_line("tuner", "status", "--dir", CONFIGS, "--device", device),
    )


def _counts(statuses: Mapping[str, int]) -> str:
    lines = {
        "ok": "measured on the GPU",
        "predicted": "PREDICTED by a model of the GPU, never measured",
        "incumbent": "the engine's own choice, written out",
    }
    known = [f"- {n} entries: {lines.get(status, status)}" for status, n in statuses.items()]
    return "\n".join(known)


def _capture(cluster: Cluster, node: str) -> str:
    image = cluster.engine.image
    words = ["--capture", f"captures/{node}", "--config-dir", CONFIGS]
    words += ["--image", image] if image else []
    return command_line("python3", "preflight.py", *words)


def _launch(node: str, image: bool) -> str:
    folder = f"nodes/{node}"
    container = f"`{folder}/docker.sh` | "
    return f"| {node} | {container if image else ''}`{folder}/bare.sh` |"
