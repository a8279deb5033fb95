"""Does what the engine would launch for a model's attention fit? Compiled by real workers."""

import pytest
from tiers import only

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine, triton_for
from tuner.errors import UnsupportedKernel
from tuner.families.attention.check import check_problems
from tuner.families.attention.problem import parse_attention

MLA = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"


def check(text, device, version):
    problem = parse_attention(text)
    return check_problems([problem], find_device(device), find_engine(f"sglang=={version}"))


RELEASES = [
    ("0.4.4", "L40S", 106_496, False),
    ("0.5.23", "L40S", 71_680, True),
    ("0.5.2", "L40S", 71_680, True),
    ("0.5.2", "RTX PRO 6000", 106_496, False),
    ("0.5.23", "RTX PRO 6000", 71_680, True),
    ("0.4.4", "A100", 106_496, True),
]


@pytest.mark.parametrize(
    ("version", "device", "shared_bytes", "fits"), only(RELEASES[:2], RELEASES)
)
def test_deepseeks_extend_fits_or_does_not(version, device, shared_bytes, fits):
    report = check(f"extend_attention:{MLA}", device, version)
    (found,) = report.entries
    assert (found.compiled.shared_bytes, found.compiled.ok) == (shared_bytes, fits)
    assert report.fits is fits
    assert ("would crash" in report.as_text()) is not fits
    assert (found.fits_with is None) is fits


def test_what_does_not_fit_is_told_what_would():
    report = check(f"extend_attention:{MLA}", "L40S", "0.4.4")
    assert report.entries[0].fits_with == report.entries[0].config.replace(BLOCK_N=32)
    assert "1 kernel of sglang 0.4.4 on NVIDIA_L40S: 1 would crash\n" in report.as_text()
    assert "fits with BLOCK_N 32" in report.as_text()


def test_a_card_that_the_engines_triton_does_not_know_is_told():
    if triton_for(find_engine("sglang==0.4.4")).version != "3.1.0":
        pytest.skip("no triton-3.1.0 beside the engines: `make test` unpacks it")
    report = check(f"extend_attention:{MLA}", "RTX PRO 6000", "0.4.4")
    assert not report.fits
    assert "computeCapability not supported" in report.as_text()


def test_both_of_decodes_kernels_are_checked():
    report = check(f"decode_attention:{MLA}", "L40S", "0.5.16")
    assert [k.kernel for k in report.entries] == [
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage2",
    ]
    assert [entry["part"] for entry in report.as_json()["entries"]] == ["decode", "reduce"]
    assert report.as_text().endswith("2 kernels of sglang 0.5.16 on NVIDIA_L40S: all fit")


def test_a_kernel_that_the_version_lacks_is_named():
    text = "extend_attention:q_heads=64,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16,sinks"
    with pytest.raises(UnsupportedKernel, match="this version's kernel has no sinks"):
        check(text, "L40S", "0.4.4")
