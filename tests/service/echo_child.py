"""A child that answers each request with itself and the process that it has started."""

import subprocess
import sys

from tuner.childprocess import ParentPipes

if __name__ == "__main__":
    parent = ParentPipes()
    print("a greeting of a library")  # noqa: T201  # it must not reach the parent
    sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    parent.send({"ready": True})
    while True:
        parent.send({**parent.receive(), "sleeper": sleeper.pid})
