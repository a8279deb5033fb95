"""Speaks the protocol of `tuner.cli.one_gpu` and tunes nothing: problems' seeds say what happens.

It adds a line to the file that LOG names for each problem that it hears of, and for each that it
runs.
"""

import os
import signal
from pathlib import Path

from tuner.childprocess import ParentPipes

REFUSED, FAILS, DIES, WAITS = 1, 2, 3, 4


def log(text: str) -> None:
    with Path(os.environ["LOG"]).open("a") as file:
        file.write(f"{text}\n")


def run(at: int, seed: int, parent: ParentPipes) -> None:
    meeting = Path(os.environ["LOG"]).with_name("meeting")
    if seed == WAITS:
        try:
            meeting.write_text("a FIFO: it takes this once somebody reads")
            signal.pause()
        except KeyboardInterrupt:
            log(f"{at} interrupted")
            os._exit(1)
    if seed in (DIES, FAILS):
        meeting.read_text()  # once the other process waits
    if seed == DIES:
        os._exit(7)
    if seed == FAILS:
        parent.send({"failed": {"message": "as asked", "exit_code": 2}})
    else:
        parent.send({"at": at, "report": {"at": at, "totals": {}}, "text": f"{at}.", "chosen": []})


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as `tuner.cli.one_gpu` does
    parent, opened = ParentPipes(), []
    parent.send({"ready": True})
    while True:
        message = parent.receive()
        if (asked := message["request"]) is not None:
            log(f"GPU {asked['gpu']} hears of {message['at']}")
            if asked["seed"] == REFUSED:
                error = {"message": "not that one", "exit_code": 2}
                parent.send({"at": message["at"], "refused": error})
            else:
                opened.append((message["at"], asked["seed"]))
        if message["run"] and opened:
            at, seed = opened.pop(0)
            log(f"{at} runs")
            run(at, seed, parent)
        elif message["run"]:
            parent.send({"idle": True})


if __name__ == "__main__":
    main()
