"""Capture the outputs of a node's tools into a folder, and read such a folder.

Checks always read a folder, so they give the same findings on the node and elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
from pathlib import Path

from tuner.deploy.preflight.facts import Node
from tuner.deploy.preflight.gpus import parse_kernel, parse_nvidia_smi, parse_topology
from tuner.deploy.preflight.network import (
    parse_ahosts,
    parse_devinfo_gids,
    parse_environment,
    parse_ibdev2netdev,
    parse_ibstat,
    parse_ibv_devinfo,
    parse_ip_addr,
    parse_ip_route,
    parse_listeners,
    parse_show_gids,
    read_sysfs,
)
from tuner.errors import MalformedCapture

TIME_LIMIT_S = 60  # nvidia-smi takes tens of seconds without persistence mode
LARGEST_OUTPUT = 16 * 2**20  # bytes that are read of a captured output
COMMANDS = {
    "ibdev2netdev.txt": ("ibdev2netdev",),
    "show_gids.txt": ("show_gids",),
    "nvidia-smi-topo.txt": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-q.txt": ("nvidia-smi", "-q"),
    "ip-addr.json": ("ip", "-j", "addr"),
    "ip-route.json": ("ip", "-j", "route"),
    "hostname-addresses.txt": ("getent", "ahosts", "{hostname}"),
    "lspci.txt": ("lspci", "-D", "-vvv"),
    "iommu.txt": ("ls", "/sys/class/iommu"),
    "ibstat.txt": ("ibstat",),
    "ibv_devinfo.txt": ("ibv_devinfo", "-v"),
}
COPIES = {
    "tcp.txt": "/proc/net/tcp",
    "tcp6.txt": "/proc/net/tcp6",
    "modules.txt": "/proc/modules",
    "cmdline.txt": "/proc/cmdline",
    "nvidia-version.txt": "/proc/driver/nvidia/version",
}
# Sources that are empty if there is nothing to say, or that help only one check.
_OPTIONAL = (
    *("lspci.txt", "iommu.txt", "modules.txt", "cmdline.txt", "nvidia-version.txt"),
    *("ibstat.txt", "ibv_devinfo.txt"),  # /sys/class/infiniband says the same
)
# Only variables that the checks read, because an environment also holds secrets.
VARIABLES = (
    *("NCCL_", "GLOO_", "TP_SOCKET_", "UCX_"),
    *("SGLANG_HOST_IP", "HOST_IP", "VLLM_HOST_IP", "SGLANG_MOE_"),
    *("SGLANG_PLUGINS", "VLLM_PLUGINS"),
)
_SYSFS_GLOBS = (
    "*/ports/*/state",
    "*/ports/*/phys_state",
    "*/ports/*/link_layer",
    "*/ports/*/rate",
    "*/ports/*/gids/*",
    "*/ports/*/gid_attrs/types/*",
    "*/ports/*/gid_attrs/ndevs/*",
    "*/device/numa_node",
    "*/device/uevent",
    "*/device/current_link_*",
    "*/device/max_link_*",
)


def capture(
    folder: Path,
    image: str = "",
    config_dir: str = "",
    root: Path = Path("/"),
) -> list[str]:
    """Run the commands and store their outputs under `folder`.

    `image` is a container image whose id is recorded; `config_dir` is a folder of engine configs to
    hash. capture.json notes a tool that is missing, fails or takes too long. Return the sources
    without output. Raises MalformedCapture if `folder` cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        notes = {name: _run(folder / name, command) for name, command in COMMANDS.items()}
        for name, source in COPIES.items():
            notes[name] = _copy(root / source.lstrip("/"), folder / name)
        notes["sys"] = _copy_sysfs(root / "sys/class/infiniband", folder / "sys/class/infiniband")
        kept = {k: v for k, v in os.environ.items() if k.startswith(VARIABLES)}
        lines = [f"{name}={value}\n" for name, value in sorted(kept.items()) if "\n" not in value]
        (folder / "environment.txt").write_text("".join(lines), encoding="utf-8")
        _write_json(folder / "versions.json", _versions(image, config_dir))
        _write_json(folder / "capture.json", {"hostname": socket.gethostname(), "notes": notes})
    except OSError as error:
        raise MalformedCapture(f"cannot capture into {folder}: {error.strerror}") from None
    return [source for source, note in notes.items() if note != "ok" and source not in _OPTIONAL]


def captured_text(folder: Path, silent: list[str]) -> str:
    """Say that outputs were captured, and which sources gave nothing."""
    names = ", ".join(source.rpartition(".")[0] or source for source in silent)
    return f"captured into {folder}" + (f"; these gave nothing: {names}" if silent else "")


def _run(target: Path, command: tuple[str, ...]) -> str:
    words = [word.format(hostname=socket.gethostname()) for word in command]
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands
            words, capture_output=True, timeout=TIME_LIMIT_S, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return "not installed"
    except subprocess.TimeoutExpired:
        return f"no answer within {TIME_LIMIT_S} s"
    except OSError as error:
        return str(error.strerror)
    target.write_bytes(done.stdout)
    return "ok" if done.returncode == 0 else f"exit status {done.returncode}"


def _copy(source: Path, target: Path) -> str:
    try:
        content = source.read_bytes()
    except OSError as error:
        return str(error.strerror)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return "ok"


def _copy_sysfs(source: Path, target: Path) -> str:
    if not source.is_dir():
        return "absent"
    for pattern in _SYSFS_GLOBS:
        for path in source.glob(pattern):
            _copy(path, target / path.relative_to(source))
    # The name of an interface's folder, and whether the physical function has a folder.
    for pattern in ("*/device/net/*", "*/device/physfn"):
        for path in source.glob(pattern):
            (target / path.relative_to(source)).mkdir(parents=True, exist_ok=True)
    return "ok"


def _versions(image: str, config_dir: str) -> dict[str, str]:
    versions = {"python": platform.python_version(), "kernel": platform.release()}
    for package in ("sglang", "vllm", "triton", "torch"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if image:
        versions["image"] = _image_id(image)
    if config_dir:
        versions["configs"] = hash_folder(Path(config_dir))
    return versions


def _image_id(image: str) -> str:
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
    try:
        done = subprocess.run(  # noqa: S603 - no shell; the name is an argument
            command, capture_output=True, timeout=TIME_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else "absent"


def hash_folder(folder: Path) -> str:
    """Return the sha256 of the names and contents of all files below `folder`, in the order of
    names.
    """
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_capture(name: str, folder: Path) -> Node:
    """Read a folder of captured outputs. Raises MalformedCapture.

    Outputs saved by hand may have other names: a file whose name contains the tool's name is taken,
    and if there are several, the file whose name also contains the node's name.
    """
    if not folder.is_dir():
        raise MalformedCapture(f"{folder} is not a folder of captured outputs")
    node = Node(name)
    texts = {source: _find(folder, name, source) for source in (*COMMANDS, *COPIES)}
    node.ports = parse_ibdev2netdev(texts["ibdev2netdev.txt"])
    node.gids = parse_show_gids(texts["show_gids.txt"])
    node.topology = parse_topology(texts["nvidia-smi-topo.txt"])
    node.gpus = parse_nvidia_smi(texts["nvidia-smi-q.txt"])
    node.interfaces = parse_ip_addr(texts["ip-addr.json"])
    node.default_interface = parse_ip_route(texts["ip-route.json"])
    node.listeners = parse_listeners(texts["tcp.txt"]) + parse_listeners(texts["tcp6.txt"])
    node.hostname_addresses = parse_ahosts(texts["hostname-addresses.txt"])
    node.environment = parse_environment(_read(folder / "environment.txt"))
    node.versions = _read_versions(folder / "versions.json")
    listed = parse_ibstat(texts["ibstat.txt"]) or parse_ibv_devinfo(texts["ibv_devinfo.txt"])
    node.devices, gids = read_sysfs(folder / "sys/class/infiniband")
    node.devices = node.devices or listed
    node.gids = node.gids or gids or parse_devinfo_gids(texts["ibv_devinfo.txt"])
    absent = {source for source, text in texts.items() if not text.strip()}
    node.missing = tuple(s for s in texts if s in absent and s not in _OPTIONAL)
    rdma = node.ports or node.gids or node.devices or node.topology.nics
    node.nothing_found = not (rdma or node.gpus or node.topology.gpus)
    node.without_rdma = not rdma and _looked_for_rdma(folder)
    node.kernel = parse_kernel(
        texts["modules.txt"],
        texts["cmdline.txt"],
        texts["iommu.txt"],
        texts["lspci.txt"],
        texts["nvidia-version.txt"],
        node.versions.get("kernel", ""),
    )
    parsed = {
        "ibdev2netdev.txt": node.ports,
        "show_gids.txt": node.gids,
        "nvidia-smi-topo.txt": node.topology.gpus,
        "nvidia-smi-q.txt": node.gpus,
        "ip-addr.json": node.interfaces,
        "ibstat.txt": node.devices,
        "ibv_devinfo.txt": node.devices,
    }
    node.unread = tuple(s for s, value in parsed.items() if texts[s].strip() and not value)
    if not any(texts.values()) and not node.devices:
        raise MalformedCapture(f"{folder} holds no captured output of node {name}")
    return node


def _find(folder: Path, node: str, source: str) -> str:
    """Return the text of a source; empty if it was not captured."""
    if (folder / source).is_file():
        return _read(folder / source)
    stem = source.rpartition(".")[0]
    if source in COPIES:
        return ""  # too many names contain "tcp"
    near = sorted(p for p in folder.iterdir() if stem in p.name and p.is_file())
    chosen = [p for p in near if node in p.name] if len(near) > 1 else near
    return _read(chosen[0]) if len(chosen) == 1 else ""


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(LARGEST_OUTPUT).decode("utf-8", "replace")
    except OSError:
        return ""


def _looked_for_rdma(folder: Path) -> bool:
    """Say whether the capture looked at /sys/class/infiniband, so that an unseen device does not
    exist.
    """
    try:
        value = json.loads(_read(folder / "capture.json") or "null")
        return value["notes"]["sys"] in ("ok", "absent")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _read_versions(path: Path) -> dict[str, str]:
    try:
        value = json.loads(_read(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}
