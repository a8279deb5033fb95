"""The table of GPUs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tuner.devices.table import devices, find_device
from tuner.errors import UnknownDevice
from tuner.problems.dtypes import Dtype

# CUDA programming guide: (a block's opt-in limit, an SM's, threads, warps)
LIMITS = {
    80: (166_912, 167_936, 2048, 64),
    86: (101_376, 102_400, 1536, 48),
    89: (101_376, 102_400, 1536, 48),
    90: (232_448, 233_472, 2048, 64),
    100: (232_448, 233_472, 2048, 64),
    103: (232_448, 233_472, 2048, 64),
    120: (101_376, 102_400, 1536, 48),
    121: (101_376, 102_400, 1536, 48),
}
# Spellings in the names of files that sglang 0.5.16 and 0.5.23 ship.
SHIPPED = [
    "NVIDIA_A100-SXM4-40GB",
    "NVIDIA_A100-SXM4-80GB",
    "NVIDIA_A800-SXM4-80GB",
    "NVIDIA_B200",
    "NVIDIA_B300_SXM6_AC",
    "NVIDIA_GB10",
    "NVIDIA_GB200",
    "NVIDIA_GB300",
    "NVIDIA_GeForce_RTX_4090",
    "NVIDIA_H100_80GB_HBM3",
    "NVIDIA_H20",
    "NVIDIA_H20-3e",
    "NVIDIA_H200",
    "NVIDIA_H200_NVL",
    "NVIDIA_H800",
    "NVIDIA_L20",
    "NVIDIA_L40",
    "NVIDIA_L40S",
    "NVIDIA_RTX_6000_Ada_Generation",
    "NVIDIA_RTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition",
    "NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition",
]


def test_there_are_at_least_25():
    assert len(devices()) >= 25


@pytest.mark.parametrize("device", devices(), ids=lambda d: d.name)
def test_every_figure_is_possible_and_has_its_source(device):
    limits = (
        device.shared_optin_bytes,
        device.shared_per_sm_bytes,
        device.max_threads_per_sm,
        device.max_warps_per_sm,
    )
    assert limits == LIMITS[device.arch]
    assert device.registers_per_sm == 65_536
    assert device.source and device.arch_source
    assert re.fullmatch(r"NVIDIA_[\w-]+", device.name)
    assert 40 <= device.sm_count <= 192
    assert 200 <= device.bandwidth_gbs <= 8_000
    assert device.memory_bytes >= 24 << 30
    # Dense: no architecture does more than this many fp16 operations a clock and SM at 3 GHz.
    per_clock = {80: 2048, 86: 1024, 89: 1024, 90: 4096, 100: 8192, 103: 8192, 120: 1024, 121: 1024}
    assert device.fp16_tflops * 1e12 <= device.sm_count * per_clock[device.arch] * 3e9
    assert (device.fp8_tflops is None) == (device.arch < 89)
    if device.fp8_tflops:
        assert device.fp8_tflops == pytest.approx(2 * device.fp16_tflops, rel=0.02)


def test_names_and_aliases_name_one_device_each():
    seen: dict[str, str] = {}
    for device in devices():
        for spelling in (device.name, *device.aliases):
            assert find_device(spelling) is device
            key = spelling.casefold().replace(" ", "").replace("_", "").replace("-", "")
            assert seen.setdefault(key, device.name) == device.name


@pytest.mark.parametrize("name", SHIPPED)
def test_engine_spellings_are_exact(name):
    assert find_device(name).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("L40S", "NVIDIA_L40S"),
        ("nvidia l40s", "NVIDIA_L40S"),
        ("NVIDIA L40S", "NVIDIA_L40S"),
        ("h100", "NVIDIA_H100_80GB_HBM3"),
        ("H100-SXM", "NVIDIA_H100_80GB_HBM3"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA_H100_80GB_HBM3"),
        ("H20_3e", "NVIDIA_H20-3e"),
        ("rtx 4090", "NVIDIA_GeForce_RTX_4090"),
        ("B300", "NVIDIA_B300_SXM6_AC"),
        ("a100-pcie-40gb", "NVIDIA_A100-PCIE-40GB"),
    ],
)
def test_spelling_is_lenient(text, name):
    assert find_device(text).name == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("L40X", "did you mean 'L40"),
        ("H10", "did you mean 'H100'"),
        ("V100", "sm_70) is too old: Triton's kernels need sm_80"),
        ("Tesla T4", "sm_75) is too old"),
        ("", "`tuner devices` lists"),
    ],
)
def test_unknown_devices_are_refused(text, words):
    with pytest.raises(UnknownDevice, match=re.escape(words)) as caught:
        find_device(text)
    assert "\n" not in str(caught.value)


def test_peaks_are_of_the_type_that_the_tensor_cores_run():
    card, old = find_device("RTX 4090"), find_device("A100")
    assert card.peak_tflops(Dtype.BFLOAT16) == card.peak_tflops(Dtype.INT4_W4A16) == 165.2
    assert card.peak_tflops(Dtype.FP8_W8A8) == 330.3
    assert card.peak_tflops(Dtype.INT8_W8A8) == 660.6
    assert old.peak_tflops(Dtype.FP8_W8A8) is None


def test_the_table_loads_without_heavy_imports():
    code = (
        "import sys, tuner.devices, tuner.checkpoints as c; tuner.devices.devices(); c.presets();"
        "print({'torch', 'triton', 'optuna', 'sqlalchemy', 'numpy'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
