import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from warm_compilers import WarmProcess, warm_compilers

from tuner.childprocess import ChildDied, ChildProcess

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}


@pytest.fixture
def child():
    child = ChildProcess("echo_child", ENV)
    yield child
    child.reap()


def test_requests_are_answered_in_order_and_prints_are_no_answers(child):
    assert child.wait_until_ready(60) == {"ready": True}
    for number in range(3):
        child.send({"number": number})
    answers = [child.poll(60) for _ in range(3)]
    assert [answer["number"] for answer in answers if answer] == [0, 1, 2]


PARENT = """
import os, signal
from tuner.childprocess import ChildProcess
child = ChildProcess("echo_child", dict(os.environ))
child.wait_until_ready(60)
pid, sleeper = child._process.pid, child.ask({}, 60)["sleeper"]
os.kill(pid, signal.SIGSTOP)
os.waitid(os.P_PID, pid, os.WSTOPPED)
print(pid, sleeper, flush=True)
signal.pause()
"""


def test_a_stopped_child_ends_with_its_parent():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=-1, env=ENV, text=True) as parent:
        assert parent.stdout
        ends = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    try:
        for process in ends:
            assert select.select([process], [], [], 60)[0], "a process of the child still runs"
    finally:
        for process in ends:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)


def test_a_child_ends_with_all_that_it_started_when_its_stdin_does():
    process = subprocess.Popen(
        [sys.executable, "-m", "echo_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENV,
        text=True,
        start_new_session=True,
    )
    assert process.stdout and process.stdin
    assert process.stdout.readline() == '{"ready": true}\n'
    process.stdin.write("{}\n")
    process.stdin.flush()
    sleeper = os.pidfd_open(int(process.stdout.readline().partition(":")[2].strip(" }\n")))
    process.stdin.close()
    assert process.wait(60) == -9
    assert select.select([sleeper], [], [], 60)[0], "what it started still runs"
    process.stdout.close()
    os.close(sleeper)


def test_a_process_that_owes_no_answer_goes_to_the_next_farm_of_its_environment(tmp_path):
    ours = {**ENV, "TRITON_CACHE_DIR": f"{tmp_path}/ours"}

    def started(env: dict[str, str]) -> WarmProcess:
        process = WarmProcess("echo_child", env)
        assert process.wait_until_ready(60) == {"ready": True}
        return process

    def handed_on(process: WarmProcess) -> bool:
        pid = process._process.pid
        process.end()
        process.reap()
        found = started(ours)
        found._owes = True
        found.reap()
        return found._process.pid == pid

    with warm_compilers(tmp_path):
        idle = started({**ours, "TUNER_DATABASE_URL": "of one test"})
        assert idle.ask({"number": 1}, 60)["number"] == 1
        assert handed_on(idle)
        with pytest.raises(ChildDied):
            idle.ask({}, 60)  # it is another farm's
        busy = started(ours)
        with pytest.raises(TimeoutError):
            busy.ask({}, 0)
        assert not handed_on(busy)
        assert not handed_on(started({**ENV, "TRITON_CACHE_DIR": "/elsewhere"}))
        assert not handed_on(started({**ours, "PATH": "/usr/bin"}))
        (other,) = WarmProcess._waiting
    assert other._process.returncode is not None
