"""Write the operator's README in a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from tuner.deploy.bundle.asked_files import FileComparison
from tuner.deploy.bundle.commands import endpoint, has_attention
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
{compared}

Put this folder at the same place on every node, e.g. `/opt/tuner/{name}`. `sha256sum -c SHA256SUMS`
in it finds damage; MANIFEST.json says where each entry is from. The head is {head}.

## 1. Preflight

On each node (Python 3.8 or later, nothing to install), then with all captures in one place:

```
{captures}
{check}
```

It exits with 1 if anything stands against a launch, and says how to mend it. Where it proposes
other variables than the scripts set, bundle again with `--node NAME=DIR` for each capture.
{same}
Then the network itself, beside what its cards can carry:

```
{serve}   # on {head}; perftest must be installed
{bandwidth}   # on another node
nodes/NAME/fabric.sh all-reduce   # on every node at once
```

{attention}## 2. Launch

Start the head first; `--print` shows the commands and runs nothing.

| node | {columns} |
|---|{rules}|
{launches}
{kubernetes}
## 3. Prove that the tuned files were loaded

On each node, then with all logs in one place:

```
{logs}
{proof}
```

It counts the ranks that loaded each file, tells tuned files from the engine's own, and says whether
NCCL uses RDMA (NET/IB) or TCP (NET/Socket). Then ask the server: `{ask}`.

## 4. Measure

At several lengths and concurrencies{twice}:

```
{measure} | tee -a after.txt
tuner bench-report BEFORE after.txt
```
"""
_ATTENTION = """\
## Before the launch: the plugin for tuned attention

engine-tuner's plugin reads `{configs}/attention/`: install it beside sglang, which finds it; no
package of the engine's moves. {where}

```
{install}
```

Check it with `{check}`, as the scripts do. Without it, and on another backend than Triton, servers
run with the engine's own launch constants.

"""
_SAME = "The files of {variables} must be the same on every node: hash `{hash}`.\n"
_PIP = "python3 -m pip install --no-cache-dir engine-tuner=={version}"
_IMAGE = "Make an image of the engine's, name it in `engine.image`, and bundle again:"
_KUBERNETES = """
Kubernetes, with the LeaderWorkerSet controller and NVIDIA's device plugin installed and this folder
at `/opt/tuner/{name}` on each node:

```
{label}     # each node of this cluster
kubectl apply -f kubernetes/leaderworkerset.json
```
"""
_PRIVILEGED = """
Its pods are privileged for /dev/infiniband; with an RDMA device plugin, ask for its resource.
"""
_COUNTED = {
    "ok": "measured on the GPU",
    "predicted": "PREDICTED by a model of the GPU, never measured",
    "incumbent": "the engine's own choice, written out",
}
_LOAD = (
    *("--random-input-len", "128", "--random-output-len", "128"),
    *("--num-prompts", "128", "--max-concurrency", "64"),
)
# sglang's "random-ids" needs no file. Equal lengths: sglang's ratio is shortest / longest, vLLM's
# is the largest deviation.
_SGLANG = (
    *("python3", "-m", "sglang.bench_serving", "--backend", "sglang-oai"),
    *("--dataset-name", "random-ids", "--random-range-ratio", "1.0"),
)
_VLLM = (
    *("vllm", "bench", "serve", "--backend", "vllm", "--dataset-name", "random"),
    *("--random-range-ratio", "0.0", "--ignore-eos"),
)


def readme_text(
    name: str,
    cluster: Cluster,
    device: str,
    folder_hash: str,
    statuses: Mapping[str, int],
    notes: Sequence[str],
    compared: FileComparison,
    no_kubernetes: str,
    *,
    pointers: Sequence[str],
    privileged: bool,
) -> str:
    """Return the text of README.md. `no_kubernetes` is the reason for no Kubernetes manifest, or
    empty.

    `pointers`: the variables that point at the config folder. `privileged`: whether pods are
    privileged.
    """
    model, image = cluster.model.name, cluster.engine.image
    head, *_, last = [cluster.nodes[0].name, *(node.name for node in cluster.nodes)]
    url = f"http://{endpoint(cluster.nodes[0].host, cluster.ports.serve)}"
    variables = " and ".join(f"`{variable}`" for variable in pointers)
    captured = [f"--node={node.name}=captures/{node.name}" for node in cluster.nodes]
    return _TEXT.format(
        name=name,
        model=model if "`" in model else f"`{model}`",
        engine=cluster.engine.name,
        nodes=len(cluster.nodes),
        gpus=cluster.nodes[0].gpus,
        device=device,
        tp=cluster.parallel.tp,
        counts="\n".join(f"- {n} entries: {_COUNTED.get(one, one)}" for one, n in statuses.items()),
        notes="".join(f"\n> {note}\n" for note in notes),
        compared="\n".join(f"| `{one}` | {state} |" for one, state in compared.rows()),
        same=_SAME.format(variables=variables, hash=folder_hash) if pointers else "",
        twice=f", with this bundle and, to compare, without {variables}" if pointers else "",
        attention=_attention(image) if has_attention(pointers) else "",
        kubernetes=_kubernetes(name, cluster, no_kubernetes, privileged),
        head=head,
        serve=command_line(f"nodes/{head}/fabric.sh", "serve"),
        bandwidth=command_line(f"nodes/{last}/fabric.sh", "bandwidth", cluster.nodes[0].host),
        captures="\n".join(_capture(image, node.name, bool(pointers)) for node in cluster.nodes),
        check=command_line("python3", "preflight.py", "--cluster", "cluster.json", *captured),
        columns="container | bare" if image else "bare",
        rules="---|---" if image else "---",
        launches="\n".join(_launch(node.name, bool(image)) for node in cluster.nodes),
        logs="\n".join(_log(cluster, rank) for rank in range(len(cluster.nodes))),
        proof=command_line(
            *("tuner", "load-proof", f"{name}.tar.gz"),
            *(f"{node.name}.log" for node in cluster.nodes),
        ),
        ask=command_line("curl", f"{url}/v1/models"),
        measure=_measure(cluster, url),
    )


def _kubernetes(name: str, cluster: Cluster, missing: str, privileged: bool) -> str:
    if missing:
        return f"\nThere is no Kubernetes manifest: {missing}.\n"
    label = f"{NODE_LABEL}={object_name(cluster.name)}"
    label = command_line("kubectl", "label", "node", "NODE", label)
    return _KUBERNETES.format(name=name, label=label) + (_PRIVILEGED if privileged else "")


def _measure(cluster: Cluster, url: str) -> str:
    """Return the engine's own benchmark at a load, in the head's container if there is one."""
    image = cluster.engine.image
    model = cluster.in_container().model if image else cluster.model
    inside = ("docker", "exec", container_name(cluster, 0)) if image else ()
    client: tuple[str, ...] = _SGLANG if cluster.engine.name == "sglang" else _VLLM
    asked = ("--base-url", url, "--model", model.name, "--tokenizer", model.path)
    return command_line(*inside, *client, *asked, *_LOAD)


def _attention(image: str) -> str:
    install = _PIP.format(version=version("engine-tuner"))
    run = ("docker", "run", "--rm", "--entrypoint", "python3", image) if image else ("python3",)
    return _ATTENTION.format(
        configs=CONFIGS,
        where=_IMAGE if image else "On every node:",
        install=f"FROM {image}\nRUN {install}" if image else install,
        check=f"{command_line(*run)} {PLUGIN_IMPORT}",
    )


def _capture(image: str, node: str, configs: bool) -> str:
    words = ["--capture", f"captures/{node}", *(["--config-dir", CONFIGS] if configs else [])]
    words += ["--image", image] if image else []
    return command_line("python3", "preflight.py", *words)


def _log(cluster: Cluster, rank: int) -> str:
    node = cluster.nodes[rank].name
    start = ("docker", "logs", container_name(cluster, rank))
    command = command_line(*start) if cluster.engine.image else f"nodes/{node}/bare.sh"
    return f"{command} > {node}.log 2>&1"


def _launch(node: str, image: bool) -> str:
    folder = f"nodes/{node}"
    container = f"`{folder}/docker.sh` | "
    return f"| {node} | {container if image else ''}`{folder}/bare.sh` |"
