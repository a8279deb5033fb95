"""During an upgrade, programs of the previous release end their jobs on the new schema."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tuner.jobs.job import JobState
from tuner.store import JobStore
from tuner.store.lookups import Lookups
from tuner.store.schema import HEAD

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("previous_release.py")


def git(*arguments: str) -> bytes:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def whole(commit: str) -> bool:
    """Whether a commit's migrations are one chain, unlike two branches' just after a merge."""
    names = git("ls-tree", "--name-only", commit, "migrations/versions/").decode().split()
    numbers = [Path(name).name.partition("_")[0] for name in names]
    return len(numbers) == len(set(numbers))


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last code with the schema before this one."""
    try:
        found = git("log", "--format=%H", f'-SHEAD = "{HEAD}"', "--", "tuner/store/schema.py")
        before = git("rev-list", f"{found.decode().split()[-1]}^").decode().split()
        tree = git("archive", next(filter(whole, before)), "tuner", "migrations", "tests")
    except (subprocess.CalledProcessError, FileNotFoundError, IndexError, StopIteration):
        pytest.skip("the previous release is not in this checkout's git history")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(tree)) as tar:
        tar.extractall(folder)  # noqa: S202 (our own)
    assert f'HEAD = "{HEAD}"' not in (folder / "tuner/store/schema.py").read_text()
    return folder


def test_the_previous_release_ends_its_job_on_an_upgraded_store(
    previous: Path, empty_store_url: str
) -> None:
    path = os.pathsep.join([str(previous), str(previous / "tests" / "service")])
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.read_text(), empty_store_url],
        cwd=previous,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout and program.stdout.readline() == "claimed\n"
        with JobStore.open(empty_store_url) as jobs:  # which migrates the store
            said, _ = program.communicate("\n", timeout=60)
            assert program.returncode == 0
            job = jobs.get(said.strip())
            assert (job.state, job.client) == (JobState.DONE, "local")
            assert [event.kind for event in jobs.events(job.id)][-1] == "done"
            assert job.run_id is not None
            assert len(Lookups.sharing(jobs).winners_of(job.run_id)) == 1
