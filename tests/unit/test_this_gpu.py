"""What a measuring process asks of its GPU, on CUDA and on ROCm."""

from types import SimpleNamespace

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget

from tuner.devices.target import Target, cuda_target
from tuner.errors import UnsupportedKernel
from tuner.measure.quantise import LARGEST, quantise, spread, stored_type
from tuner.measure.this_gpu import last_cache_bytes, local_target, runtime_version
from tuner.problems.dtypes import Dtype

DIE_L2 = 4 << 20


@pytest.fixture
def driver(monkeypatch):
    """A driver of Triton's and a torch that say what one test wants."""
    found = SimpleNamespace(target=GPUTarget("cuda", 90, 32), name="NVIDIA H200")
    found.get_current_target = lambda: found.target
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: found.name)
    properties = SimpleNamespace(L2_cache_size=DIE_L2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(triton.runtime.driver, "_active", found)
    return found


def rocm(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, name: str, arch: str) -> None:
    driver.target, driver.name = GPUTarget("hip", arch, 64 if arch[3] == "9" else 32), name
    monkeypatch.setattr(torch.version, "hip", "7.2.0")
    monkeypatch.setattr(torch.version, "cuda", None)


def test_a_cuda_card_is_what_torch_says(driver):
    assert local_target() == cuda_target(9, 0)
    assert last_cache_bytes() == DIE_L2
    assert stored_type(Dtype.FP8_W8A8, "cuda") == torch.float8_e4m3fn
    assert stored_type(Dtype.INT8_W8A8, "cuda") == torch.int8


@pytest.mark.parametrize(
    ("name", "arch", "cache", "fp8"),
    [
        ("AMD Instinct MI300X", "gfx942", 256 << 20, torch.float8_e4m3fnuz),
        ("AMD Instinct MI355X", "gfx950", 256 << 20, torch.float8_e4m3fn),
        ("AMD Radeon AI PRO R9700", "gfx1201", 64 << 20, torch.float8_e4m3fn),
        ("AMD Radeon Graphics", "gfx942", DIE_L2, torch.float8_e4m3fnuz),  # its name says nothing
    ],
)
def test_an_amd_card_has_its_own_float_and_cache(driver, monkeypatch, name, arch, cache, fp8):
    rocm(driver, monkeypatch, name, arch)
    assert local_target() == Target("hip", arch, driver.target.warp_size)
    assert last_cache_bytes() == cache
    assert runtime_version() == "ROCm 7.2.0"
    assert stored_type(Dtype.FP8_W8A8, "cuda") == fp8
    assert stored_type(Dtype.FP8_W8A8, "cpu") == torch.float8_e4m3fn
    assert stored_type(Dtype.INT8_W8A8, "cuda") == torch.int8


def test_emulated_floats_are_not_measured(driver, monkeypatch):
    rocm(driver, monkeypatch, "AMD Radeon RX 7900 XTX", "gfx1100")
    with pytest.raises(UnsupportedKernel, match="gfx1100 has no 8-bit floats"):
        stored_type(Dtype.FP8_W8A8, "cuda")


@pytest.mark.parametrize("dtype", LARGEST)
def test_what_is_quantised_comes_back(dtype):
    x = torch.linspace(-3, 3, 64 * 256).reshape(64, 256)
    values, scale = quantise(x, (1, 128), dtype)
    assert values.dtype == dtype
    back = values.float() * spread(scale, (1, 128), x.shape)
    steps = 2**-4 * x.abs() + scale.max() * 2  # three bits of mantissa, or whole numbers
    assert bool(((back - x).abs() <= steps).all())
    assert float(values.float().abs().max()) == LARGEST[dtype]
