"""`tuner jobs` and its commands, and `tuner nightly`, on a local store."""

import io
import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from itertools import product

import pytest
from commands import tuner as run
from typer.testing import Result
from worker_processes import PROBLEM, RECORDING, embedded

from tuner.cli import jobs
from tuner.jobs.job import JobEvent
from workers.settings import Settings

Tuner = Callable[..., Result]


@pytest.fixture
def url(tmp_path, monkeypatch):
    found = f"sqlite:///{tmp_path / 'tuner.db'}"
    monkeypatch.setenv("TUNER_DATABASE_URL", found)
    for name in ("TUNER_BROKER_URL", "TUNER_SERVER", "TUNER_NIGHTLY", "TUNER_RECORDINGS"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def tuner(url):
    return run


DECODE = "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=8"
REPLAY = (
    *("jobs", "submit", PROBLEM.spec(), "--device", "H200", "--batch-sizes", "2,16"),
    *("--effort", "quick", "--measure"),
)


def test_a_job_is_posted_followed_and_listed(tuner, url):
    posted = tuner(*REPLAY, f"replay:{RECORDING}")
    job_id = posted.stdout.strip()
    with embedded(Settings(url)):
        followed = tuner("jobs", "follow", job_id, "--json")
    assert json.loads(followed.stdout)["state"] == "done"
    steps = [line.split()[1].rstrip(":") for line in followed.stderr.splitlines()]
    # No worker was there when it was posted.
    assert (steps[:4], steps[-1]) == (["submitted", "waiting", "leased", "running"], "done")
    (trials,) = [line for line in followed.stderr.splitlines() if line.startswith("trials: ")]
    assert re.fullmatch(
        r"trials: \d+( of at most \d+)? tried; best M=\d+ (up|down) [\d.]+ us", trials
    )
    assert f"next: tuner jobs follow {job_id}" in posted.stderr
    listed = json.loads(tuner("jobs", "--state", "done", "--json").stdout)
    assert [job["id"] for job in listed] == [job_id]
    shown = dict(
        line.split(": ", 1) for line in tuner("jobs", "show", job_id).stdout.splitlines()[-2:]
    )
    _, *words = shlex.split(shown["its gain"])
    tuner(*words, "--json")
    assert shown["its files"].startswith("tuner export --device ")
    again = tuner(*REPLAY, f"replay:{RECORDING}")
    assert again.stdout.strip() == job_id
    assert "it is done" in again.stderr


class Terminal(io.StringIO):
    """A terminal that keeps what is written on it."""

    def isatty(self) -> bool:
        return True


def trials_of(tried, point, time_us):
    now = datetime.now(timezone.utc)
    return JobEvent("j", 1, "trials", now, {"tried": tried, "best_us": {point: time_us}})


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_trials_are_one_line_that_is_drawn_on_a_terminal(stream, monkeypatch):
    written = stream()
    monkeypatch.setattr("sys.stderr", written)
    planned = replace(trials_of(0, "", 0), kind="planned", data={"to_try": 40})
    line = jobs._TrialsLine()
    assert not line.takes(planned)
    for tried in (10, 20):
        assert line.takes(trials_of(tried, "M=2 up", 4.0 / tried))
    assert line._text(80) == "trials: 30 of at most 40 tried; best M=2 up 0.2 us"
    assert line._done() == (30, 40)
    line.close()
    said = "trials: 30 of at most 40 tried; best M=2 up 0.2 us\n"
    assert written.getvalue().endswith(said)
    drawn = written.getvalue().removesuffix(said)
    assert bool(drawn) is (stream is Terminal)  # the bar; elsewhere a line each ten seconds


def test_several_jobs_are_listed_next(tuner):
    options = ("--device", "H200", "--tp", "8", "--family", "attention", "--workload", "offline")
    assert "next: tuner jobs\n" in tuner("jobs", "submit", "deepseek-r1", *options).stderr


def test_a_recording_is_named_as_the_worker_will_see_it(tuner, monkeypatch):
    monkeypatch.chdir(RECORDING.parent)
    posted = tuner(*REPLAY, f"replay:{RECORDING.name}", "--json")
    assert json.loads(posted.stdout)["request"]["measure"] == f"replay:{RECORDING}"


def test_attention_s_points_travel_with_the_job(tuner, tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("[[point]]\nbatch_size = 64\ncached_tokens = 4096\n")
    posted = tuner("jobs", "submit", DECODE, "--device", "H200", "--workload", str(file), "--json")
    request = json.loads(posted.stdout)["request"]
    assert request["problem"] == DECODE
    point = {"batch_size": 64, "new_tokens": 1, "cached_tokens": 4096, "weight": 1.0}
    assert request["workload"] == [point]


SERVED = (
    "[TP0] Prefill batch, #new-seq: 1, #new-token: 500, #cached-token: 0, #running-req: 0,\n"
    "[TP0] Decode batch, #running-req: 8, #token: 32768, gen throughput (token/s): 400.00,\n"
)


def test_what_a_server_s_log_shows_travels_with_the_jobs_of_all_families(tuner, tmp_path):
    log = tmp_path / "server.log"
    log.write_text(SERVED)
    options = ("deepseek-r1", "--device", "H200", "--tp", "8", "--workload", str(log))
    layer = tuner("jobs", "submit", *options, "--family", "fused_moe", "--json")
    assert json.loads(layer.stdout)["request"]["batch_sizes"] == [8, 512]
    attention = tuner("jobs", "submit", *options, "--family", "attention", "--json")
    points = {
        job["request"]["problem"].partition(":")[0]: job["request"]["workload"]
        for job in json.loads(attention.stdout)["jobs"]
    }
    decode = {"batch_size": 8, "new_tokens": 1, "cached_tokens": 4096, "weight": 1.0}
    extend = {"batch_size": 1, "new_tokens": 512, "cached_tokens": 0, "weight": 1.0}
    assert points == {"decode_attention": [decode], "extend_attention": [extend]}


def test_a_log_of_decode_alone_leaves_extend_its_usual_batches(tuner, tmp_path):
    log = tmp_path / "server.log"
    log.write_text(SERVED.splitlines()[1])
    options = ("--device", "H200", "--family", "attention", "--workload", str(log), "--json")
    posted = tuner("jobs", "submit", "qwen3-30b-a3b", *options)
    assert "has no point of extend" in posted.stderr
    assert "the usual batches are tuned" in posted.stderr


def test_a_model_s_attention_is_a_job_for_each_problem(tuner):
    options = ("--device", "H200", "--tp", "8", "--family", "attention", "--workload", "offline")
    posted = tuner("jobs", "submit", "deepseek-r1", *options)
    ids = posted.stdout.split()
    listed = {job["id"]: job["request"] for job in json.loads(tuner("jobs", "--json").stdout)}
    assert listed.keys() == set(ids)
    assert {request["workload"] for request in listed.values()} == {"offline"}
    families = [listed[one]["problem"].partition(":")[0] for one in ids]
    assert sorted(set(families)) == ["decode_attention", "extend_attention"]
    assert {request["model"] for request in listed.values()} == {"deepseek-r1"}


def test_all_families_of_a_model_are_jobs(tuner):
    options = ("deepseek-r1", "--device", "H200", "--tp", "8", "--batch-sizes", "1,2")
    posted = tuner("jobs", "submit", *options, "--workload", "offline", "--family", "all", "--json")
    assert "also has" not in posted.stderr
    requests = [job["request"] for job in json.loads(posted.stdout)["jobs"]]
    kinds = {request["problem"].partition(":")[0] for request in requests}
    assert kinds >= {"fused_moe", "extend_attention", "decode_attention"}
    for request in requests:
        is_layer = request["problem"].startswith("fused_moe:")
        if is_layer:
            assert request["batch_sizes"] == [1, 2]
        if "attention" in request["problem"]:
            assert (request["workload"], "batch_sizes" in request) == ("offline", False)
    posted = tuner("jobs", "submit", *options, "--json")
    assert "left out extend_attention:" in posted.stderr  # an H200's servers read no file for it
    read = [job["request"] for job in json.loads(posted.stdout)["jobs"]]
    assert {one["problem"].partition(":")[0] for one in read} == {"fused_moe", "block_gemm"}
    assert all(one in requests for one in read)
    one = tuner("jobs", "submit", *options, "--family", "fused_moe", "--json")
    assert json.loads(one.stdout)["request"] in read


OF_A_LAYER = (
    *("--ep 8", "--block-shape 128x128", "--fuse-shared", "--no-fuse-shared", "--hidden-size 7168"),
    *("--top-k 8", "--batch-sizes 1,2"),
)
OF_A_MODEL = ("--tp 8", "--dtype bfloat16", "--page-size 64", "--kv-splits 4")
REFUSED_FOR_ATTENTION = [
    *product(("deepseek-r1 --family attention", DECODE), OF_A_LAYER),
    *product((DECODE,), OF_A_MODEL),
]


@pytest.mark.parametrize("command", ["tune", "jobs submit"])
def test_an_option_of_a_layer_or_a_model_is_refused_for_attention(tuner, command, subtests):
    """A problem names its model's sizes, so it takes no option of a model."""
    for target, option in REFUSED_FOR_ATTENTION:
        with subtests.test(f"{target} {option}"):
            options = ("--device", "H200", "--measure", "predict", *option.split())
            done = tuner(*command.split(), *target.split(), *options, code=2)
            assert done.stdout == ""
            assert option.split()[0] in done.stderr


def test_ids_are_whole_in_a_pipe_and_short_on_a_terminal_where_they_name_a_job(tuner, monkeypatch):
    options = ("--device", "H200", "--tp", "8", "--family", "attention", "--workload", "offline")
    ids = tuner("jobs", "submit", "deepseek-r1", *options).stdout.split()
    monkeypatch.delenv("COLUMNS", raising=False)
    head, rule, *rows = tuner("jobs").stdout.splitlines()
    assert sorted(row.split()[0] for row in rows) == sorted(ids)  # a pipe has a line for each
    monkeypatch.setenv("COLUMNS", "80")
    narrow = tuner("jobs").stdout
    assert max(map(len, narrow.splitlines())) <= 80
    shown = [line.split()[0] for line in narrow.splitlines() if line.startswith(ids[0][:6])]
    assert len(shown) == len(ids) and max(map(len, shown)) < len(ids[0])
    for short in shown:
        found = json.loads(tuner("jobs", "show", short, "--json").stdout)["id"]
        assert found.startswith(short) and found in tuner("jobs", "show", short).stdout
    common = os.path.commonprefix(ids)
    several = tuner("jobs", "show", common[:2], code=2)
    assert f"{len(ids)} jobs begin with {common[:2]}" in several.stderr
    shared = max(len(os.path.commonprefix([ids[0], other])) for other in ids[1:])
    unique = ids[0][: shared + 1]
    assert json.loads(tuner("jobs", "show", unique, "--json").stdout)["id"] == ids[0]
    assert f"{ids[0]} is cancelled" in tuner("jobs", "cancel", unique).stdout
    tuner("jobs", "show", "nothing", code=2)


def test_a_cancelled_job_ends_following_with_1(tuner):
    job_id = tuner(*REPLAY, f"replay:{RECORDING}", "--urgent").stdout.strip()
    assert "cancelled" in tuner("jobs", "cancel", job_id).stdout
    followed = tuner("jobs", "follow", job_id, code=1)
    assert "cancelled" in followed.stdout


OF_QWEN = ("jobs", "submit", "qwen3-30b-a3b", "--device", "H200")
BAD_INPUT = [
    ((*OF_QWEN, "--family", "attention", "--workload", "no.log"), "no use is called 'no.log'"),
    (
        (*OF_QWEN, "--family", "attention", "--workload", "no.log"),
        "a file is named by an existing path",
    ),
    ((*OF_QWEN, "--workload", "hello.log"), "names no batch: give a server's log"),
    (
        ("jobs", "submit", PROBLEM.spec(), "--device", "H200", "--workload", "chat"),
        "is for attention",
    ),
    (("jobs", "show", "nope"), "there is no job 'nope'"),
    (("jobs", "cancel", "nope"), "there is no job 'nope'"),
    (("jobs", "--state", "runing"), "did you mean 'running'"),
    (("jobs", "--device", "L40X"), "did you mean 'L40'"),
    (("jobs", "submit", "deepseek-r1", "--device", "L40X"), "did you mean 'L40'"),
    ((*OF_QWEN, "--family", "fused_mo"), "unknown family 'fused_mo'; did you mean 'fused_moe'?"),
    ((*REPLAY, "guess"), "unknown way of measuring"),
    (("nightly", "run", "--last"), "there was no night yet"),
    (("nightly", "run", "--watch-list", "none.toml"), "No such file"),
    (("worker",), "TUNER_BROKER_URL"),
]


def test_bad_input_is_one_line(tuner, tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello.log").write_text("hello\n")
    for arguments, reason in BAD_INPUT:
        with subtests.test(" ".join(arguments)):
            refused = tuner(*arguments, code=2)
            assert reason in refused.stderr
            assert refused.stdout == ""
            assert json.loads(tuner("jobs", "--json").stdout) == []


def test_jobs_are_listed_by_state_and_client(tuner):
    first, second, third = (
        tuner(*REPLAY, f"replay:{RECORDING}", *sizes).stdout.strip()
        for sizes in ((), ("--batch-sizes", "2"), ("--batch-sizes", "16"))
    )
    tuner("jobs", "cancel", second)

    def listed(*options: str) -> list[str]:
        return [job["id"] for job in json.loads(tuner("jobs", *options, "--json").stdout)]

    assert listed() == [third, second, first]
    assert listed("--limit", "2") == [third, second]
    assert listed("--state", "cancelled", "--state", "done") == [second]
    assert listed("--client", "local") == [third, second, first]
    assert listed("--client", "team") == []


def test_a_night_is_shown_before_and_after(tuner, tmp_path):
    watch_list = tmp_path / "nightly.toml"
    watch_list.write_text(
        '[[watch]]\nmodels = ["deepseek-r1"]\ndevices = ["L40S"]\ntp = [8, 16]\n'
        'dtypes = ["int8_w8a8"]\nmeasure = "predict"\n'
    )
    dry = tuner("nightly", "run", "--dry-run", "--watch-list", str(watch_list))
    assert "2 watched, 2 to do" in dry.stdout
    assert "NVIDIA_L40S" in dry.stdout
    assert json.loads(tuner("jobs", "--json").stdout) == []
    assert "2 queued" in tuner("nightly", "run", "--watch-list", str(watch_list)).stdout
    assert len(json.loads(tuner("jobs", "--json").stdout)) == 2
    last = json.loads(tuner("nightly", "run", "--last", "--json").stdout)
    assert len(last["submitted"]) == 2
    assert "2 queued" in tuner("nightly", "run", "--last").stdout


def test_a_list_says_what_each_job_is_of_how_old_it_is_and_why_it_waits(tuner, monkeypatch):
    model = ("deepseek-r1", "--tp", "8", "--device", "H20", "--engine", "sglang")
    posted = tuner("jobs", "submit", *model, "--family", "fused_moe")
    job_id = posted.stdout.strip()
    why = "no worker with NVIDIA_H20 and sglang"
    monkeypatch.delenv("COLUMNS", raising=False)  # as in a pipe
    (row,) = (line for line in tuner("jobs").stdout.splitlines() if line.startswith(job_id))
    assert "deepseek-r1 TP 8 fused_moe:E=257," in row
    assert re.search(r"  \d+ s  " + why, row)
    monkeypatch.setenv("COLUMNS", "80")  # as on a terminal
    shown = tuner("jobs").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(
        f"^{job_id}  queued  NVIDIA_H20  deepseek-r1 TP 8 fused_moe  \\d+ s$", shown, re.M
    )
    assert f"queued: {why}" in shown
    tuner("jobs", "cancel", job_id)
    assert why not in tuner("jobs").stdout


def test_a_watch_and_a_night_say_that_nobody_will_do_their_jobs(tuner, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    added = tuner("nightly", "watches", "add", "deepseek-r1", "--device", "H20", "--tp", "16")
    assert "its jobs will wait: no worker with NVIDIA_H20 and sglang was ever seen" in added.stderr
    for words in (
        ("nightly", "run", "--dry-run"),
        ("nightly", "run"),
        ("nightly", "run", "--last"),
    ):
        shown = tuner(*words).stdout
        assert "its jobs wait: no worker with NVIDIA_H20 and sglang" in shown
        assert "missing  fused_moe:E=257,N=128," in shown
        assert "on NVIDIA_H20, gpu; 36 of 36 points are not measured" in shown
        assert max(map(len, shown.splitlines())) <= 80
    assert (
        "its jobs"
        not in tuner("nightly", "watches", "add", "deepseek-r1", "--device", "H20", "--json").stdout
    )


def test_prune_says_how_much_it_deleted(tuner):
    refused = tuner("admin", "prune", "--days", "3", code=2)
    assert "greater than or equal to 30" in refused.stderr
    done = tuner("admin", "prune", "--days", "180")
    assert done.stdout == "deleted 0 jobs, 0 runs, 0 trials, 0 nights\n"


def test_migrate_names_the_store_that_it_made(tuner, tmp_path):
    done = tuner("admin", "migrate")
    assert f"the store {tmp_path / 'tuner.db'} has this program's schema" in done.stderr


def test_with_all_an_option_says_which_families_it_does_not_bound(tuner):
    options = ("qwen3-235b-a22b", "--tp", "4", "--device", "H200", "--family", "all")
    few = tuner("jobs", "submit", *options, "--batch-sizes", "1,64")
    assert "--batch-sizes does not bound attention: --workload does" in few.stderr
    both = tuner("jobs", "submit", *options, "--batch-sizes", "1,64", "--workload", "chat")
    assert "does not bound" not in both.stderr
