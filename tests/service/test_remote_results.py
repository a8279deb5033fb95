"""Commands that take results from a server make of them what they make of the same local store."""

import json
import tarfile
from pathlib import Path

import pytest
from api_server import CLUSTER, WHOLE, Server, serving
from attention_cases import DECODE, EXTEND, fill
from store_writer import KEY
from typer.testing import CliRunner, Result

from api.settings import ApiSettings
from tuner.cli.commands import app
from tuner.problems.results import Totals
from tuner.store.keys import Scope
from tuner.store.result_files import read_winner, winner_json
from tuner.store.results import ResultStore
from workers.settings import Settings

OF_ATTENTION = ("--device", "H200", "--engine", "sglang==0.5.16")
EXPORT = ("export", *OF_ATTENTION, "--server-args", "--attention-backend triton")


def tuner(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def filled(sqlite_url: str) -> str:
    """The URL of a store with results of two devices."""
    with ResultStore.open(sqlite_url) as opened:
        fill(opened, EXTEND)
        fill(opened, DECODE)
        opened.finish_run(opened.begin_run(KEY), WHOLE, Totals())
    return sqlite_url


@pytest.fixture
def server(filled, tmp_path, monkeypatch):
    """A server over that store; the store of this machine is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    monkeypatch.delenv("TUNER_SERVER", raising=False)
    with serving(ApiSettings(Settings(filled))) as running:
        running.key = running.app.state.api.keys.add("reader", Scope.READ)
        monkeypatch.setenv("TUNER_API_KEY", running.key)
        yield running


def files_below(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in found.items()}


def test_a_winner_is_read_back_whole(filled: str) -> None:
    with ResultStore.open(filled) as opened:
        found = opened.winners(device="NVIDIA_H200", engine="sglang")
        found += opened.winners(device="NVIDIA_L40S", engine="sglang")
    assert len(found) > len(WHOLE)
    assert [read_winner(json.loads(json.dumps(winner_json(one)))) for one in found] == found


def test_files_and_pages_are_those_of_the_same_local_store(
    server: Server, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Path("cluster.toml")
    cluster.write_text(CLUSTER)
    commands = {
        "files": EXPORT,
        "page": ("report", *OF_ATTENTION),
        "bundle.tar.gz": ("bundle", "--device", "L40S", "--cluster", cluster, "--allow-missing"),
    }
    for name, words in commands.items():
        tuner(*words, "--out", f"remote-{name}", "--server", server.url)
        with monkeypatch.context() as patch:
            patch.setenv("TUNER_DATABASE_URL", filled)
            tuner(*words, "--out", f"local-{name}")
    for name in ("files", "page"):
        remote = files_below(Path(f"remote-{name}"))
        assert remote and remote == files_below(Path(f"local-{name}"))
    names = []
    for place in ("remote", "local"):
        with tarfile.open(f"{place}-bundle.tar.gz") as tar:
            names.append({one.name: one.size for one in tar.getmembers()})
    assert names[0] == names[1] and any("E=256,N=64" in name for name in names[0])


def test_without_the_server_nothing_is_written(server: Server) -> None:
    away = "http://127.0.0.1:1"
    for words in (EXPORT, ("report", *OF_ATTENTION)):
        done = tuner(*words, "--out", "nothing", "--server", away, code=1)
        assert f"{away} does not answer" in done.stderr
        refused = tuner(*words, "--out", "nothing", code=1)  # the local store has none
        assert "tuner tune" in refused.stderr
    assert not Path("nothing").exists()


def test_an_answer_that_is_no_winner_is_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.routes.results.winner_json", lambda _: _broken())
    done = tuner(*EXPORT, "--out", "nothing", "--server", server.url, code=1)
    assert "does not answer as this version's service does" in done.stderr
    assert not Path("nothing").exists()


def _broken() -> dict[str, object]:
    place = {"device": "../../elsewhere"}
    return {
        **{"problem": EXTEND.spec(), "environment": place, "entry": {}, "run_id": 1},
        **{"published_at": "2026-11-28T00:00:00+00:00", "unpredicted": None},
    }


def test_results_are_listed_shown_and_forgotten(
    server: Server, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--server", server.url)
    listed = tuner("results", "list", *at).stdout
    assert EXTEND.spec() in listed and KEY.problem.spec() in listed
    assert EXTEND.spec() not in tuner("results", "list", "--device", "L40S", *at).stdout
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, tuner("results", "list", *at).stdout.splitlines())) <= 80
    mine = (KEY.problem.spec(), "--device", "L40S")
    shown = tuner("results", "show", *mine, *at).stdout
    assert "tuned us" in shown and "1.25x" in shown
    place = KEY.environment
    release = f"sglang {place.engine_version}, Triton {place.triton}; "
    assert shown.splitlines()[1].startswith(release)
    engines = json.loads(tuner("results", "show", *mine, *at, "--json").stdout)["engines"]
    assert engines == [f"sglang=={place.engine_version}"]
    assert "scope" in tuner("results", "forget", *mine, *at, code=2).stderr
    monkeypatch.setenv("TUNER_API_KEY", server.app.state.api.keys.add("root", Scope.ADMIN))
    tuner("results", "forget", *mine, "--engine", "sglang==0.5.16", *at, code=2)
    said = tuner("results", "forget", *mine, *at).stderr
    assert said.startswith(f"forgot the results of {KEY.problem.spec()} on NVIDIA_L40S")
    wanted = ("deepseek-r1", "--device", "L40S", "--engine", "sglang==0.5.16", *at)
    none = tuner("export", *wanted, code=1).stderr
    assert f"run `tuner jobs submit {' '.join(wanted)}` first" in " ".join(none.split())
    gone = tuner("results", "show", *mine, *at, code=2)
    assert "`tuner results list` lists its results" in gone.stderr
    with ResultStore.open(filled) as opened:
        left = opened.winners(device="NVIDIA_L40S", engine="sglang")
        assert left == [] and opened.winners(device="NVIDIA_H200", engine="sglang")
    with ResultStore.open(f"sqlite:///{Path.cwd() / 'empty.db'}") as own:
        own.finish_run(own.begin_run(KEY), WHOLE, Totals())
        tuner("results", "forget", *mine)
        assert own.winners(device="NVIDIA_L40S", engine="sglang") == []
