"""Stand-ins for docker, ray, vllm and python3 on a node, for the really run scripts of a bundle.

`programs.py NAME WORDS...` reads its command line, notes it in the file $STARTED and ends: with
another status than 0 if the program would refuse a flag or a value. docker runs the container's
program with the container's variables. $ENGINE and $RELEASE say which release the nodes have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import NoReturn

# `docker run`, of docker's reference: options with a value, and without.
_DOCKER = (
    "add-host cap-add cap-drop cgroupns cpus cpuset-cpus device dns entrypoint env env-file expose "
    "gpus group-add hostname ipc label log-driver log-opt memory memory-swap mount name network "
    "pid platform publish pull restart runtime security-opt shm-size stop-signal stop-timeout "
    "sysctl tmpfs ulimit user volume volumes-from workdir"
)
_DOCKER_ALONE = "detach init interactive no-healthcheck privileged read-only rm tty"
# `ray start` of Ray 2.48.0, ray/scripts/scripts.py; vLLM 0.15.1 asks for that or a newer one.
_RAY = (
    "node-ip-address address node-name worker-port-list resources dashboard-host plasma-directory "
    "object-spilling-directory autoscaling-config temp-dir labels labels-file"
)
_RAY_NUMBERS = (
    "port object-manager-port node-manager-port min-worker-port max-worker-port num-cpus num-gpus "
    "ray-client-server-port object-store-memory dashboard-port dashboard-agent-listen-port "
    "dashboard-agent-grpc-port runtime-env-agent-port metrics-export-port"
)
_RAY_ALONE = "head block no-redirect-output disable-usage-stats enable-resource-isolation"


class _Parser(argparse.ArgumentParser):
    """Takes no shortened flags, as docker and ray take none."""

    def __init__(self, name: str, values: str, alone: str, numbers: str = "") -> None:
        super().__init__(name, allow_abbrev=False, add_help=False)
        for flag in values.split():
            self.add_argument(f"--{flag}", action="append", default=[])
        for flag in numbers.split():
            self.add_argument(f"--{flag}", type=int)
        for flag in alone.split():
            self.add_argument(f"--{flag}", action="store_true")


def docker(words: list[str]) -> None:
    if words[:1] != ["run"]:
        refuse(f"docker: no command {words[:1]}")
    parser = _Parser("docker run", _DOCKER, _DOCKER_ALONE)
    parser.add_argument("image")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(words[1:])
    for volume in given.volume:
        paths = volume.split(":")
        if len(paths) not in (2, 3) or not all(PurePosixPath(p).is_absolute() for p in paths[:2]):
            refuse(f"docker: volume {volume!r}")
    if not all(":" not in device and device.startswith("/dev/") for device in given.device):
        refuse(f"docker: device {given.device}")
    passed = {name: os.environ[name] for name in ("PATH", "STARTED", "ENGINE", "RELEASE")}
    for variable in given.env:
        name, has_value, value = variable.partition("=")
        passed |= {name: value} if has_value else {name: os.environ.get(name, "")}
    program = given.entrypoint or refuse("docker: the image's own entrypoint is not known")
    done = subprocess.run([*program, *given.arguments], env=passed)
    sys.exit(done.returncode)


def ray(words: list[str]) -> None:
    if words == ["stop"]:
        return
    if words[:1] != ["start"]:
        refuse(f"ray: no command {words[:1]}")
    given = _Parser("ray start", _RAY, _RAY_ALONE, _RAY_NUMBERS).parse_args(words[1:])
    if given.head == bool(given.address):
        refuse("ray start: give --head or --address")


def vllm(words: list[str]) -> None:
    if words[:1] != ["serve"]:
        refuse(f"vllm: no command {words[:1]}")
    serve("vllm", words[1:])


def python3(words: list[str]) -> None:
    if words[:2] == ["-c", "import tuner.bindings.sglang.plugin"]:
        return
    if words[:2] != ["-m", "sglang.launch_server"]:
        refuse(f"python3: not known here: {words}")
    serve("sglang", words[2:])


def serve(engine: str, words: list[str]) -> None:
    if os.environ["ENGINE"] != engine:
        refuse(f"{engine} is not in this image")
    parser = Path(__file__).with_name("engine_parser.py")
    command = [sys.executable, parser, engine, os.environ["RELEASE"], *words]
    sys.exit(subprocess.run(command).returncode)


def refuse(why: str) -> NoReturn:
    sys.exit(why)


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    with Path(os.environ["STARTED"]).open("a") as started:
        started.write(json.dumps([name, *given]) + "\n")
    {"docker": docker, "ray": ray, "vllm": vllm, "python3": python3}[name](given)
