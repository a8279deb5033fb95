"""Exports over HTTP: what is in them, when they are made, and what a client need not download."""

import io
import json
import shutil
import tarfile
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from api_server import Answer, Server, serving
from attention_cases import DECODE, ENVIRONMENT, EXTEND, entry, fill, point, usual
from databases import both_databases

from api import exports
from api.settings import ApiSettings
from tuner.engines.engine import find_engine
from tuner.families.attention.problem import AttentionPart
from tuner.problems.points import Config, Problem
from tuner.problems.results import Incumbent, MeasureKind, RunKey, Status, Totals
from tuner.store.keys import Scope
from tuner.store.results import ResultStore
from workers.settings import Settings

PLAIN = "/v1/exports/H200.tar?engine=sglang==0.5.16"
TRITON = "server_args=--attention-backend%20triton"  # FlashAttention 3 is the default there
PATH = f"{PLAIN}&{TRITON}"
FOLDER = "NVIDIA_H200-sglang-0.5.16"
LIST = f"{FOLDER}/provenance/left_out,device_name=NVIDIA_H200.jsonl"


@contextmanager
def serving_readers(url: str) -> Iterator[Server]:
    """The API, asked with a key that may only read."""
    with serving(ApiSettings(Settings(url))) as running:
        running.key = running.app.state.api.keys.add("reader", Scope.READ)
        yield running


@pytest.fixture
def server(store_url):
    with serving_readers(store_url) as running:
        yield running


@pytest.fixture
def store(server, store_url):
    with ResultStore.open(store_url) as opened:
        yield opened


@pytest.fixture
def one_server(sqlite_url):
    """For what does not depend on the database."""
    with ResultStore.open(sqlite_url) as opened:
        fill(opened, EXTEND)
    with serving_readers(sqlite_url) as running:
        yield running


class Making:
    """Counts how often archives are made, and how many at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = self.at_once = self.most_at_once = 0
        self._lock, self._make = threading.Lock(), exports.make_archive
        monkeypatch.setattr(exports, "make_archive", self)

    def __call__(self, *arguments: object) -> object:
        with self._lock:
            self.times, self.at_once = self.times + 1, self.at_once + 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return self._make(*arguments)
        finally:
            with self._lock:
                self.at_once -= 1


@pytest.fixture
def making(monkeypatch):
    return Making(monkeypatch)


def files_of(answer: Answer) -> dict[str, bytes]:
    assert answer.status == 200, answer.body[:500]
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}


class TestPredicted:
    def test_a_prediction_stops_nobody(self, server, store):
        fill(store, DECODE)
        before = server.call("GET", PATH)
        assert before.headers["x-tuner-left-out"] == "0"
        assert LIST not in files_of(before)

        fill(store, EXTEND, status=Status.PREDICTED)
        after = server.call("GET", PATH)
        assert after.headers["x-tuner-left-out"] == "1"
        listed = files_of(after).pop(LIST)
        (left_out,) = map(json.loads, listed.splitlines())
        why = "only predicted: measure it, or allow predicted entries"
        assert left_out == {"problem": EXTEND.spec(), "why": why}
        assert files_of(after) == {**files_of(before), LIST: listed}

        allowed = server.call("GET", f"{PATH}&allow_predicted=true")
        assert allowed.headers["x-tuner-left-out"] == "0"
        names = files_of(allowed).keys()
        assert any(f"{FOLDER}/attention" in name and "/extend_" in name for name in names)
        assert LIST not in names

    def test_where_nothing_else_was_asked_for_it_is_refused(self, server, store):
        fill(store, EXTEND, status=Status.PREDICTED)
        says = f"4 of the 4 winners for {EXTEND.spec()} were predicted, not measured: measure them"
        said = server.call("GET", PATH).problem(409)
        assert said == f"{says}, or pass allow_predicted=true"
        fill(store, DECODE)
        assert server.call("GET", PATH).status == 200
        assert server.call("GET", f"{PATH}&problem={EXTEND.spec()}").problem(409) == said
        named = server.call("GET", f"{PATH}&problem={DECODE.spec()}")
        assert (named.status, named.headers["x-tuner-left-out"]) == (200, "0")


class TestAdvised:
    def test_what_servers_run_anyway_is_left_alone(self, server, store):
        fill(store, EXTEND)
        why = "servers run FlashAttention 3, which was not measured beside Triton"
        said = server.call("GET", PLAIN).problem(409)
        assert said == f"nothing is advised for these servers: {EXTEND.spec()}: leave it: {why}"

        other = {"fa3": Incumbent(Config({}), Status.OK, 900.0, backend="fa3")}
        faster = [replace(one, incumbents={**one.incumbents, **other}) for one in usual(EXTEND)]
        fill(store, EXTEND, faster)
        advised = server.call("GET", PLAIN)
        assert advised.headers["x-tuner-server-flags"] == "--prefill-attention-backend triton"
        assert advised.headers["x-tuner-left-out"] == "0"

        fill(store, DECODE)
        partly = server.call("GET", PLAIN)
        (line,) = files_of(partly)[LIST].splitlines()
        assert json.loads(line) == {"problem": DECODE.spec(), "why": f"leave it: {why}"}
        assert partly.headers["x-tuner-left-out"] == "1"
        assert server.call("GET", PATH).headers["x-tuner-server-flags"] == ""


class TestMadeOnce:
    def test_six_clients_get_one_archive_that_was_made_once(self, server, store, making):
        fill(store, EXTEND)
        with ThreadPoolExecutor(6) as clients:
            answers = list(clients.map(lambda _: server.call("GET", PATH), range(6)))
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body for answer in answers}) == 1
        assert making.times == 1
        tag = {"If-None-Match": answers[0].headers["etag"]}
        assert server.call("GET", PATH, headers=tag).status == 304
        assert making.times == 1

    def test_it_is_made_again_when_what_is_stored_changes(self, server, store, making):
        fill(store, EXTEND)
        first = server.call("GET", PATH)
        fill(store, EXTEND, device="NVIDIA_L40S")  # which has its own
        assert server.call("GET", PATH).body == first.body
        assert making.times == 1
        other = [entry(one.point, num_warps=4) for one in usual(EXTEND)]
        fill(store, EXTEND, other)  # replaces all of them
        second = server.call("GET", PATH)
        assert second.body != first.body
        assert second.headers["etag"] != first.headers["etag"]
        named = server.call("GET", f"{PATH}&problem={EXTEND.spec()}")
        assert (named.body, making.times) == (second.body, 3)

    def test_different_archives_are_made_one_after_the_other(self, server, store, making):
        for device in ("NVIDIA_H200", "NVIDIA_L40S", "NVIDIA_H20"):
            fill(store, EXTEND, device=device)
        with ThreadPoolExecutor(6) as clients:
            paths = [
                f"/v1/exports/{device}.tar?engine=sglang==0.5.16&{TRITON}"
                f"&allow_predicted={predicted}"
                for device in ("H200", "L40S", "H20")
                for predicted in ("true", "false")
            ]
            answers = list(clients.map(lambda path: server.call("GET", path), paths))
        assert [answer.status for answer in answers] == [200] * 6
        assert (making.times, making.most_at_once) == (6, 1)

    def test_a_refusal_is_found_out_once_and_ends_with_its_reason(self, server, store, making):
        says = [server.call("GET", PATH).problem(409) for _ in range(2)]
        assert says[0] == says[1]
        assert making.times == 1
        fill(store, EXTEND)
        assert server.call("GET", PATH).status == 200

    def test_it_is_made_again_when_the_engine_s_own_files_change(
        self, one_server, tmp_path, monkeypatch, making
    ):
        package = find_engine("sglang==0.5.16").root
        copy = tmp_path / "engines" / package.parent.name
        shutil.copytree(package.parent, copy)
        monkeypatch.setenv("TUNER_ENGINE_PATH", str(copy.parent))
        first = files_of(one_server.call("GET", PATH))
        (name,) = (
            name
            for name in first
            if name.endswith("E=1,N=14336,device_name=NVIDIA_A100-SXM4-80GB,dtype=int8_w8a16.json")
        )
        (shipped,) = copy.rglob(Path(name).name)
        shipped.write_text("{}")
        second = files_of(one_server.call("GET", PATH))
        assert second == {**first, name: b"{}"}
        assert making.times == 2

    def test_only_the_newest_are_kept(self, sqlite_url, monkeypatch, making):
        with ResultStore.open(sqlite_url) as opened:
            fill(opened, EXTEND)
        monkeypatch.setattr(exports, "_held", lambda found: 1)
        monkeypatch.setattr(exports, "KEPT_BYTES", 1)
        predicted = f"{PATH}&allow_predicted=true"
        with serving_readers(sqlite_url) as running:
            for path in (PATH, predicted, predicted, PATH):
                assert running.call("GET", path).status == 200
        assert making.times == 3  # one is kept: the one that was asked for last

    def test_what_is_kept_takes_little_memory(self, one_server):
        """Archives hold all files of the engine, and a client may ask for ever new settings."""
        lengths = [len(one_server.call("GET", PATH).body)]
        tracemalloc.start()
        try:
            for size in range(4):
                flag = f"%20--chunked-prefill-size%20{1024 + size}"
                lengths.append(len(one_server.call("GET", PATH + flag).body))
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < sum(lengths[1:]) / 2


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A server, and the tag of its export."""
    url = f"sqlite:///{tmp_path_factory.mktemp('exports') / 'tuner.db'}"
    with ResultStore.open(url) as opened:
        fill(opened, EXTEND)
    with serving_readers(url) as running:
        answer = running.call("GET", PATH)
        assert answer.headers["cache-control"] == "private, no-cache"
        assert int(answer.headers["content-length"]) == len(answer.body)
        yield running, answer.headers["etag"]


class TestConditional:
    @pytest.mark.parametrize(
        "named", ["TAG", "W/TAG", '"x", TAG', 'W/"x",W/TAG , "y"', "*", ' "a,b", TAG ']
    )
    def test_what_a_client_has_is_not_sent_again(self, kept, named):
        server, tag = kept
        headers = {"If-None-Match": named.replace("TAG", tag)}
        answer = server.call("GET", PATH, headers=headers)
        assert (answer.status, answer.body) == (304, b"")
        assert (answer.headers["etag"], answer.headers["cache-control"]) == (
            tag,
            "private, no-cache",
        )
        assert "content-length" not in answer.headers

    @pytest.mark.parametrize("named", ['"x"', "", "TAG", '"x, *"', "W/", "abc", '"x', "é"])
    def test_what_it_has_not_is_sent(self, kept, named):
        server, tag = kept
        value = named.replace("TAG", tag.strip('"')).encode()
        assert server.call("GET", PATH, headers={"If-None-Match": value}).status == 200


def test_a_server_without_room_says_so_and_not_where(one_server, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    said = one_server.call("GET", PATH).problem(507)
    assert said.startswith("the server cannot write its temporary files")
    assert str(tmp_path) not in said
    monkeypatch.undo()
    assert one_server.call("GET", PATH).status == 200


def state(store: ResultStore, device: str = "NVIDIA_H200") -> str:
    return store.winners_state(device=device, engine="sglang", engine_version="0.5.16")


@both_databases
def test_the_store_s_state_changes_with_every_winner(store_url):
    with ResultStore.open(store_url) as store:
        seen, elsewhere = [state(store)], state(store, "NVIDIA_L40S")

        def publish(problem: Problem, number: int, warps: int = 8) -> None:
            """All that is stored is replaced one by one, by the same run."""
            at = point(AttentionPart.EXTEND, 1, 512, number)
            key = RunKey(problem, ENVIRONMENT, MeasureKind.GPU, "quick", 0, (at,), "s")
            run = store.begin_run(key)
            store.finish_run(run, [entry(at, num_warps=warps)], Totals())
            seen.append(state(store))

        for number in (1, 2, 3):
            publish(EXTEND, number)
        for number in (3, 2, 1):
            publish(EXTEND, number, warps=4)
        publish(replace(EXTEND, q_heads=64), 1)
        assert len(set(seen)) == len(seen)
        assert state(store) == seen[-1]
        assert state(store, "NVIDIA_L40S") == elsewhere
