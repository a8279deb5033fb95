"""The patch for releases whose extend does not fit: `patch -p1` applies it, and all fits."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tiers import only

from tuner.bindings.sglang.attention.binding import LAUNCHERS
from tuner.bindings.sglang.attention.crash import explain
from tuner.bindings.sglang.attention.remedy import find_remedy, launches_table
from tuner.compile import CompileJob
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.attention.check import check_problems
from tuner.families.attention.engine import attention_engine
from tuner.families.attention.models import attention_problems
from tuner.families.attention.problem import AttentionPart, AttentionPhase, parse_attention
from tuner.kernels.binding import argument_of, bind
from tuner.kernels.launcher import Launcher, TensorSpec
from tuner.models.table import find_preset
from tuner.problems.points import Point

REPOSITORY = Path(__file__).parents[2]
LIMIT = 101_376
TOO_OLD = [("0.4.3.post2", "L40S"), ("0.4.4", "L40S"), ("0.5.2", "RTX PRO 6000")]
MASKED = ("12,kv_heads=4,Lq=128,Lv=128", "12,kv_heads=12,Lq=96,Lv=96", "4,kv_heads=1,Lq=576,Lv=512")


def remedy_of(version, device):
    return attention_engine(find_engine(f"sglang=={version}")).remedy(find_device(device))


def applied(remedy, folder):
    """A copy of the engine's file, changed by the patch program."""
    name = remedy.file.relative_to(remedy.root)
    copy = folder / name
    copy.parent.mkdir(parents=True)
    shutil.copyfile(remedy.file, copy)
    patch = folder / "extend.patch"
    patch.write_text(remedy.patch())
    subprocess.run(
        ["patch", "-p1", "-d", str(folder), "-i", str(patch)], check=True, capture_output=True
    )
    return copy


def extend_jobs(kernels, target):
    """DeepSeek's extend launches at TP 32, and launches with a mask of the caller's."""
    point = Point(19, AttentionPart.EXTEND, 128, 1024)
    for problem in attention_problems(find_preset("deepseek-r1"), 32):
        if problem.phase is AttentionPhase.EXTEND:
            config = kernels.default_config(problem, point, target)
            binding = kernels.bind(problem, point, config, target)
            yield CompileJob(kernels.lifted(AttentionPhase.EXTEND), binding.variant(), target)
    for fields in MASKED:
        problem = parse_attention(f"extend_attention:q_heads={fields},dtype=bfloat16")
        given = kernels.arguments(problem, point, target)
        given["custom_mask"] = TensorSpec("custom_mask", (1 << 20,), "i1")
        given["mask_indptr"] = TensorSpec("mask_indptr", (20,), "i64")
        source = kernels.sources[AttentionPhase.EXTEND]
        launcher = Launcher(source, kernels.engine.root, kernels.origin, target)
        (launch,) = launcher.run(LAUNCHERS[AttentionPhase.EXTEND][1], given)
        lifted = kernels.lifted(AttentionPhase.EXTEND)
        known = {name: argument_of(name, value) for name, value in launch.arguments.items()}
        parameters = lifted.parameters(launch.kernel)
        bound = bind(kernels.origin, launch.kernel, parameters, known, launch.options)
        yield CompileJob(lifted, bound.variant(), target)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("version", "device"), only([("0.4.4", "L40S")], TOO_OLD))
def test_after_the_patch_all_launches_of_extend_fit(farm, version, device, tmp_path):
    engine, card = find_engine(f"sglang=={version}"), find_device(device)
    remedy = remedy_of(version, device)
    patched = applied(remedy, tmp_path)
    assert patched.read_text() == remedy.patched
    kernels = attention_engine(engine).lift("cuda", {AttentionPhase.EXTEND: patched})
    jobs = list(extend_jobs(kernels, card.target))
    assert len(jobs) == 5
    farm.submit(jobs)
    found = [compiled.within(card.shared_optin_bytes) for _, compiled in farm.completed()]
    assert all(compiled.ok for compiled in found)
    assert card.shared_optin_bytes == LIMIT
    assert max(compiled.shared_bytes for compiled in found) <= 71_680


@pytest.mark.parametrize(("version", "device"), TOO_OLD)
def test_the_patch_changes_nothing_for_other_gpus(version, device, tmp_path):
    engine = find_engine(f"sglang=={version}")
    patched = applied(remedy_of(version, device), tmp_path)
    own = attention_engine(engine).lift("cuda")
    other = attention_engine(engine).lift("cuda", {AttentionPhase.EXTEND: patched})
    point = Point(1, AttentionPart.EXTEND, 128, 1024)
    for problem in attention_problems(find_preset("deepseek-r1"), 8):
        if problem.phase is AttentionPhase.EXTEND:
            for target in (find_device("A100").target, find_device("H200").target):
                before = own.default_config(problem, point, target)
                assert other.default_config(problem, point, target) == before


def test_the_patch_needs_no_git_and_no_clean_file(tmp_path):
    """A file that the user changed elsewhere is patched as it is, with its own line ends."""
    engine = find_engine("sglang==0.4.4")
    source = remedy_of("0.4.4", "L40S").file
    root = tmp_path / "sglang"
    copy = root / source.relative_to(engine.root)
    copy.parent.mkdir(parents=True)
    text = "# ours\n" + source.read_text()
    copy.write_bytes(text.replace("\n", "\r\n").encode())
    (root / "__init__.py").touch()
    remedy = find_remedy(type(engine)("0.4.4", root), find_device("L40S"))
    assert remedy.lines == (339, 352)
    assert remedy.patched.count("\r\n") == remedy.patched.count("\n") == text.count("\n") + 8
    compile(remedy.patched, "x", "exec")


def test_a_file_of_unknown_layout_has_no_patch(tmp_path):
    engine = find_engine("sglang==0.4.4")
    source = remedy_of("0.4.4", "L40S").file
    copy = tmp_path / "sglang" / source.relative_to(engine.root)
    copy.parent.mkdir(parents=True)
    for text in ("def extend_attention_fwd(\n", "\ndef extend_attention_fwd():\n    pass\n"):
        copy.write_text("\n" + text)
        remedy = find_remedy(type(engine)("0.4.4", tmp_path / "sglang"), find_device("L40S"))
        assert (remedy.patched, remedy.patch()) == ("", "")


@pytest.mark.parametrize(
    ("version", "device"),
    [("0.5.2", "L40S"), ("0.5.12", "L40S"), ("0.5.23", "RTX PRO 6000"), ("0.4.4", "A100")],
)
def test_what_fits_has_no_remedy(version, device):
    assert remedy_of(version, device) is None


@pytest.mark.timeout(300)
def test_the_check_offers_what_it_compiled():
    problem = parse_attention("extend_attention:q_heads=4,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16")
    report = check_problems([problem], find_device("L40S"), find_engine("sglang==0.4.3.post2"))
    found = report.as_json()["remedy"]
    assert found["file"].endswith("srt/layers/attention/triton_ops/extend_attention.py")
    assert (found["lines"], found["fits_since"]) == ([326, 339], "0.5.2")
    assert found["flags"] == ["--enable-flashinfer-mla"]
    assert "BLOCK_M, BLOCK_N = (32, 32)" in found["patch"]
    assert any("102,400" in note for note in found["notes"])
    text = report.as_text()
    for words in ("lines 326 to 339", "sglang 0.5.2", "--enable-flashinfer-mla", "--write-patch"):
        assert words in text


@pytest.mark.slow  # it compiles all launches twice
@pytest.mark.timeout(300)
def test_a_patch_that_does_not_fit_is_not_offered(monkeypatch):
    rows = launches_table()
    monkeypatch.setitem(rows, "tiles", [{"columns_to": 1, "tile": [32, 64]}, {"tile": [32, 64]}])
    problem = parse_attention("extend_attention:q_heads=4,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16")
    report = check_problems([problem], find_device("L40S"), find_engine("sglang==0.4.4"))
    assert report.remedy.patch() == ""
    assert "--write-patch" not in report.as_text()


@pytest.mark.parametrize(("line", "version"), launches_table()["lines"].items())
def test_the_lines_of_tracebacks_are_those_of_the_releases(line, version):
    file = attention_engine(find_engine(f"sglang=={version}")).lift()._source(AttentionPhase.EXTEND)
    assert file.read_text().split("\n")[int(line) - 1].strip() == "_fwd_kernel[grid]("


def test_recorded_bytes_are_those_of_the_benchmark():
    rows = json.loads((REPOSITORY / "benchmarks/results/l40s_log.json").read_text())
    for known in launches_table()["recorded"]:
        if "on" in known:  # another card's, from another benchmark
            continue
        for triton in [t for t in ("3.1.0", "3.4.0", "3.6.0") if t in known["triton"]]:
            for version in known["releases"]:
                found = {
                    row["shared_bytes"]
                    for row in rows
                    if (row["engine"], row["triton"], row["blocks"], row["patched"])
                    == (version, triton, known["tile"], False)
                    and row["custom_mask"] == ("mask" in known["launch"])
                }
                assert found == {known["bytes"]}
    assert max(row["shared_bytes"] for row in rows if row["patched"]) <= 71_680


def test_a_crash_in_another_kernel_is_not_explained():
    card = find_device("L40S")
    for place in (("/x/fused_moe.py", 3), ("/x/mine.py", 356)):
        assert explain(102_400, LIMIT, place, "0.4.4", [card]) is None
    assert explain(102_401, LIMIT, None, "", [card]) is None
    other = explain(120_000, LIMIT, ("/x/sglang/decode_attention.py", 9), "0.5.2", [card])
    assert "--attention-backend flashinfer" in " ".join(other.fix)
    elsewhere = explain(120_000, LIMIT, ("/x/extend_attention.py", 1), "", [card])
    assert "Upgrade to sglang 0.5.2" in elsewhere.fix[0]
