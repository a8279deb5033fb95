"""The table of GPUs."""

import re

import pytest
from cases import FP8

from tuner.bindings.sglang.fused_moe.binding import takes_tma
from tuner.devices.table import Device, architecture, card_to_check, devices, find_device
from tuner.devices.target import Target, cuda_target
from tuner.devices.tile_model import Footprint, blocks_per_sm
from tuner.errors import UnknownDevice, UnsupportedKernel
from tuner.families.fused_moe.problem import Gemm, swaps_ab
from tuner.families.fused_moe.space import space_for
from tuner.kernels.source import platform_probes
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config

# CUDA programming guide: (a block's opt-in limit, an SM's, warps)
LIMITS = {
    80: (166_912, 167_936, 64),
    86: (101_376, 102_400, 48),
    89: (101_376, 102_400, 48),
    90: (232_448, 233_472, 64),
    100: (232_448, 233_472, 64),
    103: (232_448, 233_472, 64),
    120: (101_376, 102_400, 48),
    121: (101_376, 102_400, 48),
}
# LLVM's AMDGPU backend and ROCm's GPU specifications: (LDS of a block, registers of a CU, of a
# thread, and their step, peak fp16 operations of a CU and clock, the 8-bit float)
AMD = {
    "gfx90a": (65_536, 131_072, 512, 8, 1024, None),
    "gfx942": (65_536, 131_072, 512, 8, 2048, "fp8e4b8"),
    "gfx950": (163_840, 131_072, 512, 8, 4096, "fp8e4nv"),
    "gfx1100": (65_536, 98_304, 256, 24, 512, None),
    "gfx1201": (65_536, 98_304, 256, 24, 1024, "fp8e4nv"),
}
NVIDIA_CARDS = [device for device in devices() if device.target.platform == "cuda"]
AMD_CARDS = [device for device in devices() if device.target.platform == "hip"]


def assert_possible(device: Device) -> None:
    shared, arch = device.architecture, device.target.arch
    limits = (shared.shared_optin_bytes, shared.shared_per_sm_bytes, shared.max_warps_per_sm)
    assert limits == LIMITS[arch]
    assert shared.shared_reserved_bytes == shared.shared_per_sm_bytes - shared.shared_optin_bytes
    assert (shared.registers_per_sm, shared.register_step) == (65_536, 8)
    assert not shared.launch_options and not device.untested_vendor
    assert device.source and shared.source and shared.rates_source
    assert re.fullmatch(r"NVIDIA_[\w-]+", device.name)
    assert 40 <= device.sm_count <= 192
    assert 200 <= device.bandwidth_gbs <= 8_000
    assert device.memory_bytes >= 16 << 30
    # Dense: no architecture does more than this many fp16 operations a clock and SM at 3 GHz.
    per_clock = {80: 2048, 86: 1024, 89: 1024, 90: 4096, 100: 8192, 103: 8192, 120: 1024, 121: 1024}
    assert device.fp16_tflops * 1e12 <= device.sm_count * per_clock[arch] * 3e9
    assert (device.fp8_tflops is None) == (arch < 89)
    if device.fp8_tflops:
        assert device.fp8_tflops == pytest.approx(2 * device.fp16_tflops, rel=0.02)


def assert_capable(device: Device) -> None:
    target, shared = device.target, device.architecture
    assert target == cuda_target(*target.capability)
    assert architecture(target) is shared
    # Loads through tensor descriptors and dependent launches came with sm_90.
    assert shared.has_tma == shared.has_pdl == (target.capability >= (9, 0))
    assert shared.fp8_type == ("fp8e4nv" if target.capability >= (8, 9) else None)
    # wgmma and tcgen05; the small Blackwells have neither.
    assert shared.warpgroup == (9 <= target.capability[0] < 12)
    assert 0 < shared.sync_rate <= 1 and (shared.sync_rate == 1 or shared.warpgroup)
    # With fp8 in the tensor cores, either instruction multiplies it.
    assert (device.fp8_tflops is not None) == (shared.sync_fp8 or shared.warpgroup)
    assert 1 <= shared.clock_ghz <= 3
    assert 16 <= shared.l2_bytes_per_clock <= 64
    json = device.as_json()
    assert json["arch"] == target.arch and isinstance(json["arch"], int)
    assert json["target"] == {"backend": "cuda", "arch": target.arch, "warp_size": 32}
    assert json["shared_optin_bytes"] == device.shared_optin_bytes


def assert_possible_of_amd(device: Device) -> None:
    shared, target = device.architecture, device.target
    lds, registers, most, step, per_clock, fp8 = AMD[target.name]
    assert shared.shared_optin_bytes == shared.shared_per_sm_bytes == lds
    assert (shared.registers_per_sm, shared.max_registers_per_thread) == (registers, most)
    assert (shared.register_step, shared.fp8_type) == (step, fp8)
    assert (device.fp8_tflops is None) == (fp8 is None)
    assert target.warp_size == (64 if target.name.startswith("gfx9") else 32)
    assert not (shared.has_tma or shared.has_pdl or shared.warpgroup)
    # Matrix rates are at the peak clock: an architecture's clock is that of its fastest card.
    peak = device.sm_count * per_clock * shared.clock_ghz / 1e3
    assert peak * 0.9 <= device.fp16_tflops <= peak * 1.01
    if device.fp8_tflops:
        assert device.fp8_tflops == pytest.approx(2 * device.fp16_tflops, rel=0.01)
    assert re.fullmatch(r"AMD_(Instinct|Radeon)_\w+", device.name)
    assert device.source and shared.source and shared.rates_source
    options = dict(shared.launch_options)
    assert options["waves_per_eu"][0] == 0  # first what the compiler takes by itself
    assert ("kpack" in options) == (target.name in ("gfx90a", "gfx942"))  # gfx950 takes 1 for 2
    assert ("matrix_instr_nonkdim" in options) == target.name.startswith("gfx9")
    assert device.as_json()["launch_options"] == options
    assert device.untested_vendor == "AMD"


@pytest.mark.parametrize(
    ("cards", "check"),
    [
        (NVIDIA_CARDS, assert_possible),
        (NVIDIA_CARDS, assert_capable),
        (AMD_CARDS, assert_possible_of_amd),
    ],
)
def test_every_figure_is_possible_and_has_its_source(cards, check, subtests):
    for device in cards:
        with subtests.test(device.name):
            check(device)


def test_8_bit_floats_that_would_be_emulated_are_refused():
    for card in ("A10", "A100"):
        with pytest.raises(UnsupportedKernel, match="has no 8-bit floats: Triton refuses fp8e4nv"):
            find_device(card).architecture.require_fp8()
    assert find_device("L4").architecture.require_fp8() == "fp8e4nv"
    with pytest.raises(UnsupportedKernel, match="gfx1100 has no 8-bit floats: Triton emulates"):
        find_device("RX 7900 XTX").architecture.require_fp8()
    assert find_device("MI300X").architecture.require_fp8() == "fp8e4b8"


def test_a_target_without_a_card_is_refused():
    with pytest.raises(
        UnknownDevice, match="no known device is a sm_75; `tuner list devices` lists"
    ):
        architecture(cuda_target(7, 5))


@pytest.fixture
def mi300x():
    return find_device("MI300X")


class TestAnAmdCard:
    """An AMD card is rows of the table: nothing that asks for its target takes it for CUDA."""

    def test_is_rows_of_the_table(self, mi300x):
        assert mi300x.target == Target("hip", "gfx942", 64)
        assert mi300x.target.name == mi300x.as_json()["arch"] == "gfx942"
        assert mi300x.target.capability == (9, 4)

    def test_is_no_cuda_architecture(self, mi300x):
        found = [mi300x.target.is_sm(n) or mi300x.target.is_sm_or_later(n) for n in LIMITS]
        assert found == [False] * len(LIMITS)
        assert cuda_target(9, 0).is_sm(90) and cuda_target(12, 0).is_sm_or_later(90)
        assert not cuda_target(10, 0).is_sm(90) and not cuda_target(8, 9).is_sm_or_later(90)

    def test_loads_nothing_through_tma_and_swaps_nothing(self, mi300x):
        down = space_for(FP8, mi300x, Gemm.DOWN, wide=True, tma=takes_tma(FP8, Gemm.DOWN))
        assert "USE_TMA" not in down.axes
        tma = takes_tma(FP8, Gemm.DOWN)
        h200 = space_for(FP8, find_device("H200"), Gemm.DOWN, wide=True, tma=tma)
        assert "USE_TMA" in h200.axes
        tile = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64}
        assert not swaps_ab(Config(tile), FP8.dtype, mi300x.target)

    def test_counts_threads_in_its_own_warps(self, mi300x):
        whole = {"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
        config = Config({**whole, "num_warps": 8, "num_stages": 2})
        # 65,536 accumulators: 256 each for 8 warps of 32 threads, 128 for 8 of 64.
        rule = "at most 128 accumulators a thread"
        broken = space_for(FP8, find_device("R9700"), Gemm.UP).broken_rule(config)
        assert broken is not None and broken.name == rule
        assert space_for(FP8, mi300x, Gemm.UP).broken_rule(config) is None
        assert blocks_per_sm(mi300x, 4, Footprint(1024, 128)) == 4  # 131,072 / 128 / 256
        assert blocks_per_sm(mi300x, 4, Footprint(0, 128)) == 4  # a kernel without LDS

    def test_is_given_registers_in_its_own_steps(self):
        # gfx1201 gives 121 registers as 144: 98,304 / 144 / 32 / 4 warps.
        assert blocks_per_sm(find_device("R9700"), 4, Footprint(1024, 121)) == 5
        assert blocks_per_sm(find_device("R9700"), 4, Footprint(1024, 120)) == 6

    def test_probes_say_hip(self):
        assert platform_probes("hip")["is_hip"] and not platform_probes("hip")["is_cuda"]
        assert platform_probes("cuda")["is_cuda"] and not platform_probes("cuda")["is_hip"]


def test_names_and_aliases_name_one_device_each():
    seen: dict[str, str] = {}
    for device in devices():
        for spelling in (device.name, *device.aliases):
            assert find_device(spelling) is device
            key = spelling.casefold().replace(" ", "").replace("_", "").replace("-", "")
            assert seen.setdefault(key, device.name) == device.name
    assert len(seen) > len(devices()) > 10


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
        ("MI300X", "AMD_Instinct_MI300X"),
        ("amd instinct mi300x", "AMD_Instinct_MI300X"),
        ("AMD_Instinct_MI325_OAM", "AMD_Instinct_MI325X"),
        ("AMD_Instinct_MI350_OAM", "AMD_Instinct_MI350X"),
        ("AMD_Instinct_MI355_OAM", "AMD_Instinct_MI355X"),
        ("AMD_Radeon_R9700", "AMD_Radeon_AI_PRO_R9700"),
        ("AMD_Radeon_RX7900XTX", "AMD_Radeon_RX_7900_XTX"),
    ],
)
def test_spelling_is_lenient(text, name):
    assert find_device(text).name == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("L40X", "did you mean 'L40"),
        ("H10", "did you mean 'H100'"),
        ("V100", "sm_70) is too old: Triton supports sm_80"),
        ("Tesla T4", "sm_75) is too old"),
        ("AMD Radeon Graphics", "ROCm calls a card that it has no name for: name the card itself"),
        ("MI455X", "is a gfx1250, for which Triton 3.6.0's linker fails"),
        ("AMD_Instinct_MI308X", "AMD publishes no figures: name the MI300X"),
        ("Radeon 8060S", "is a gfx1151"),
        ("MI335X", "did you mean 'MI3"),
        ("NVIDIA RTX PRO 6000D", "no tensor rates: name the RTX PRO 6000, for which kernels"),
        ("NVIDIA Thor", "is an sm_110, for which Triton 3.7 and later compile"),
        ("", "`tuner list devices` lists"),
    ],
)
def test_unknown_devices_are_refused(text, words):
    with pytest.raises(UnknownDevice, match=re.escape(words)) as caught:
        find_device(text)
    assert "\n" not in str(caught.value)


def test_a_compute_capability_is_enough_to_check_files(subtests):
    for text, name in (("sm_120", "sm_120"), ("12.0", "sm_120"), ("89", "sm_89"), ("9.0", "sm_90")):
        with subtests.test(text):
            card = card_to_check(text)
            assert card.name == name
            assert card.target.name == name
            assert card.shared_optin_bytes == architecture(card.target).shared_optin_bytes
    assert card_to_check("L40S") == find_device("L40S")
    with pytest.raises(UnknownDevice, match=r"capability 11\.0: known are sm_80"):
        card_to_check("sm_110")
    with pytest.raises(UnknownDevice, match="as in --device sm_120: `nvidia-smi"):
        card_to_check("RTX PRO 2000")
    for text in ("Tesla T4", "W7900", "Radeon Pro VII", "gfx906"):
        with subtests.test(text), pytest.raises(UnknownDevice) as caught:
            card_to_check(text)
        assert "nvidia-smi" not in str(caught.value)


def test_peaks_are_of_the_type_that_the_tensor_cores_run():
    card, old = find_device("RTX 4090"), find_device("A100")
    assert card.peak_tflops(Dtype.BFLOAT16) == card.peak_tflops(Dtype.INT4_W4A16) == 165.2
    assert card.peak_tflops(Dtype.FP8_W8A8) == 330.3
    assert card.peak_tflops(Dtype.INT8_W8A8) == 660.6
    assert old.peak_tflops(Dtype.FP8_W8A8) is None
