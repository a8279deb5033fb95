"""What a measuring process asks of its GPU, and how it quantises."""

from types import SimpleNamespace

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget

from tuner.devices.target import cuda_target
from tuner.measure.quantise import LARGEST, quantise, spread, stored_type
from tuner.measure.this_gpu import last_cache_bytes, local_target
from tuner.problems.dtypes import Dtype

L2_BYTES = 4 << 20


def test_what_torch_and_triton_say(monkeypatch):
    driver = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))
    properties = SimpleNamespace(L2_cache_size=L2_BYTES)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    assert local_target() == cuda_target(9, 0)
    assert last_cache_bytes() == L2_BYTES
    assert stored_type(Dtype.FP8_W8A8) == torch.float8_e4m3fn
    assert stored_type(Dtype.INT8_W8A8) == torch.int8


@pytest.mark.parametrize("dtype", LARGEST)
def test_what_is_quantised_comes_back(dtype):
    x = torch.linspace(-3, 3, 64 * 256).reshape(64, 256)
    values, scale = quantise(x, (1, 128), dtype)
    assert values.dtype == dtype
    back = values.float() * spread(scale, (1, 128), x.shape)
    steps = 2**-4 * x.abs() + scale.max() * 2  # three bits of mantissa, or whole numbers
    assert bool(((back - x).abs() <= steps).all())
    assert float(values.float().abs().max()) == LARGEST[dtype]
