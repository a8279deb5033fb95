"""`tuner diagnose` as people use it, and the way from a log to running files and flags."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from commands import run
from diagnose_cases import CASES

from tuner.engines.engine import find_engine

DATA = Path(__file__).parents[1] / "data"
MISSING = DATA / "l40s-missing-config.log"
NAME = "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8.json"
OLD = "sglang==0.4.4"


@pytest.fixture
def tuner(tmp_path, env):
    def tuner(*words: object, code: int = 0, stdin: str = "") -> CompletedProcess[str]:
        return run(*words, env=env, cwd=tmp_path, stdin=stdin, code=code)

    return tuner


def engine_root(version: str) -> Path:
    return find_engine(f"sglang=={version}").root


def crash_log(folder: Path, root: Path) -> Path:
    """The L40S server's crash, with the path that the engine has here."""
    source = root / "srt/layers/attention/triton_ops/extend_attention.py"
    text = source.read_text().split("\n")
    line = text.index("    _fwd_kernel[grid](") + 1
    log = folder / "crash.log"
    log.write_text(
        "[2025-03-10 10:00:00 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "{source}", line {line}, in extend_attention_fwd\n    _fwd_kernel[grid](\n'
        '  File "/x/site-packages/triton/runtime/jit.py", line 345, in <lambda>\n'
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 102400, "
        "Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n"
    )
    return log


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("few_kernels")
def test_the_way_of_the_l40s_author_from_a_log_to_files_patch_and_flags(tuner, tmp_path):
    """Two logs go in; a file that the release loads, a patch that applies, and flags come out."""
    site = tmp_path / "site"
    root = engine_root("0.4.4")
    name = Path("sglang/srt/layers/attention/triton_ops/extend_attention.py")
    shutil.copytree(root / "srt/layers/attention", site / "sglang/srt/layers/attention")
    (site / "sglang/__init__.py").touch()
    crash = crash_log(tmp_path, site / "sglang")

    found = json.loads(tuner("diagnose", MISSING, crash, "--engine", OLD, "--json").stdout)
    by_name = {row["message"]: row for row in found["found"]}
    assert list(by_name) == ["shared_memory", "moe_config_missing"]
    assert by_name["moe_config_missing"]["details"]["file"] == NAME

    # The file: the very commands that the answer gives.
    tune, export = by_name["moe_config_missing"]["commands"]
    done = tuner(
        *shlex.split(tune)[1:],
        *("--measure", "predict", "--effort", "quick", "--batch-sizes", "1"),
    )
    assert f"up: {NAME}" in done.stderr
    tuner(*shlex.split(export)[1:], "--allow-predicted", "--out", "out")
    assert (tmp_path / "out" / "configs" / NAME).is_file()

    # The patch and the flags.
    text = " ".join([*by_name["shared_memory"]["cause"], *by_name["shared_memory"]["fix"]])
    for words in ("102,400 bytes", "106,496 bytes", "sglang 0.5.2", "--enable-flashinfer-mla"):
        assert words in text
    done = tuner("diagnose", crash, "--device", "L40S", "--write-patch", "extend.patch")
    assert f"patch -p1 -d {site}" in done.stderr
    before = (site / name).read_text()
    subprocess.run(
        ["patch", "-p1", "-d", str(site), "-i", str(tmp_path / "extend.patch")], check=True
    )
    assert "CUDA_CAPABILITY == (8, 9)" in (site / name).read_text()
    assert len((site / name).read_text().split("\n")) == len(before.split("\n")) + 8


def test_nothing_is_wrapped_off_a_terminal_and_text_comes_from_pipes_too(tuner, tmp_path):
    everything = tmp_path / "all.log"
    everything.write_text("\n".join(case.log for case in CASES))
    done = tuner("diagnose", everything)
    assert " \\\n" not in done.stdout
    assert done.stdout.startswith("1. stops: ")
    piped = tuner("diagnose", "-", stdin=MISSING.read_text())
    assert "stdin:1" in piped.stdout
    assert NAME in piped.stdout


def test_what_is_unknown_exits_with_1(tuner, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("ValueError: nobody has ever seen this\n")
    done = tuner("diagnose", log, code=1)
    assert "not known: server.log:1: ValueError: nobody has ever seen this; " in done.stdout
    assert done.stdout.count("\n") == 1
    log.write_text("all is well\n" * 3)
    assert "nothing known in 3 lines" in tuner("diagnose", log, code=1).stdout


def test_a_patch_for_a_release_that_is_not_here_says_how_to_add_it(tuner, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("out of resource: shared memory, Required: 106496, Hardware limit: 101376.\n")
    named = ("--device", "A10", "--engine", "sglang==0.4.0.post2")
    done = tuner("diagnose", log, *named, "--write-patch", tmp_path / "extend.patch", code=2)
    assert "`tuner list engines --add sglang==0.4.0.post2` adds it" in done.stderr
    assert not (tmp_path / "extend.patch").exists()


def test_bad_input_is_one_line(tuner, tmp_path):
    assert "cannot be read" in tuner("diagnose", tmp_path / "none.log", code=2).stderr
    assert "did you mean" in tuner("diagnose", MISSING, "--device", "L40X", code=2).stderr
    assert "write sglang or vllm" in tuner("diagnose", MISSING, "--engine", "x", code=2).stderr
    done = tuner("diagnose", MISSING, "--write-patch", "p.diff", code=2)
    assert "no patch to write" in done.stderr
    assert not (tmp_path / "p.diff").exists()
    done = tuner("check", MISSING, "--device", "L40S", "--write-patch", "p.diff", code=2)
    assert "name the model in place of files" in done.stderr


@pytest.mark.slow  # on each commit, test_attention_patch has the check's patch
@pytest.mark.timeout(300)
def test_the_check_writes_the_patch_too(tuner, tmp_path):
    words = ("check", "deepseek-r1", "--tp", "8", "--device", "L40S")
    done = tuner(*words, "--engine", OLD, "--write-patch", "extend.patch", code=1)
    assert "fits_since" not in done.stdout
    assert (tmp_path / "extend.patch").read_text().startswith("--- a/sglang/srt/layers/")
    assert "sglang 0.5.2 and later" in done.stdout
    fits = tuner(*words, "--engine", "sglang==0.5.2", "--write-patch", "none.patch", code=2)
    assert "no patch to write" in fits.stderr


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("few_kernels")
def test_tune_takes_a_log(tuner, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("noise\n" * 100 + MISSING.read_text() * 8)
    words = ("--measure", "predict", "--effort", "quick", "--batch-sizes", "1")
    words += ("--json",)
    done = tuner("tune", log, "--device", "L40S", "--engine", OLD, *words)
    assert f"up: {NAME}" in done.stderr
    report = json.loads(done.stdout)
    assert report["file_names"]["up"] == NAME
    # The newer release asks for another file, and that is said.
    done = tuner("tune", log, "--device", "L40S", "--engine", "sglang==0.5.16", *words)
    assert "is of a release before 0.4.7" in done.stderr
    other = tuner("tune", log, "--device", "L4", "--engine", OLD, *words)
    assert "the log's server has NVIDIA_L40S, and this tunes for NVIDIA_L4" in other.stderr
    log.write_text("nothing is missing\n")
    refused = tuner("tune", log, "--device", "L40S", "--engine", OLD, *words, code=2)
    assert "tuner diagnose" in refused.stderr
