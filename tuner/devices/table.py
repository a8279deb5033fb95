"""Read the table of GPUs: names as engines spell them, limits, and peak rates.

The figures and their sources are in devices.toml, which is parsed once, on first use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from tuner.devices.target import CUDA, Target
from tuner.errors import UnknownDevice, UnsupportedKernel, did_you_mean
from tuner.files import shipped_toml
from tuner.problems.dtypes import Dtype

OLDEST_ARCH = 80  # Triton supports compute capability 8.0 and later
_CAPABILITY = re.compile(r"(?:sm_?)?(\d{1,2})\.?(\d)")
_OF_AMD = re.compile(r"AMD|.*Radeon|Instinct|gfx|(?:RX|W|MI|R)[ _-]?\d", re.IGNORECASE)
_BY_CAPABILITY = (
    "; config files can be checked for a compute capability too, as in --device sm_120: "
    "`nvidia-smi --query-gpu=compute_cap --format=csv` prints it"
)
_LISTED = {
    "cli": "; `tuner list devices` lists the known GPUs",
    "api": "; GET /v1/devices lists the known GPUs",
    "page": ": the page Devices lists the known GPUs",
}


@dataclass(frozen=True)
class Architecture:
    """The properties that all GPUs of a target share."""

    target: Target
    has_tma: bool  # loads through tensor descriptors
    has_pdl: bool  # a kernel may start before the kernel that it depends on has ended
    # Triton's name for the 8-bit float of weights on this target; None: it has none, or emulates it
    fp8_type: str | None
    shared_optin_bytes: int  # largest shared memory of one block, when a kernel opts in
    shared_per_sm_bytes: int
    shared_reserved_bytes: int  # shared memory that the system keeps for each block
    registers_per_sm: int  # 32 bits each
    max_registers_per_thread: int
    register_step: int  # a thread's registers are allocated in multiples of this
    max_warps_per_sm: int
    max_blocks_per_sm: int
    source: str  # of the limits and capabilities
    clock_ghz: float  # a typical boost clock of its cards
    l2_bytes_per_clock: float  # L2 reads of one SM when all SMs read
    warpgroup: bool  # has tensor-core instructions of 64 rows that read from shared memory
    sync_rate: float  # the share of the peak rate that mma.sync reaches
    sync_fp8: bool  # mma.sync multiplies fp8; otherwise Triton converts fp8 to fp16 for it
    rates_source: str  # of the clock and the rates after it
    # Options of the target's compiler besides warps and stages, and their values that are worth a
    # trial. A launch without an option has its first value.
    launch_options: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def require_fp8(self) -> str:
        """Return `fp8_type`. Raises UnsupportedKernel if Triton has none, or emulates it."""
        if self.fp8_type is None:
            why = "Triton emulates them, which took 532 s for one kernel"
            if self.target.platform == CUDA:
                why = "Triton refuses fp8e4nv before sm_89 (L4, L40S, RTX 4090, H100)"
            raise UnsupportedKernel(
                f"{self.target.name} has no 8-bit floats: {why}; serve 16-bit or int8 weights there"
            )
        return self.fp8_type

    @property
    def stops_at_fp8(self) -> bool:
        """Say whether Triton's kernels of 8-bit floats do not compile, so that a server stops."""
        return self.fp8_type is None and self.target.platform == CUDA


@dataclass(frozen=True)
class Device:
    """A kind of GPU.

    Peaks are the vendor's dense rates, without structured sparsity, at boost clock. The fp16 rate
    (also valid for bf16) and the fp8 rate are for accumulation in fp32, which the kernels use;
    GeForce cards then reach half of their advertised rate.
    """

    name: str  # torch.cuda.get_device_name() with underscores: the engine's spelling in file names
    aliases: tuple[str, ...]
    architecture: Architecture
    sm_count: int
    memory_bytes: int  # nominal
    l2_bytes: int
    bandwidth_gbs: float  # device memory, 1e9 bytes a second
    fp16_tflops: float
    fp8_tflops: float | None  # None: the tensor cores have no fp8
    int8_tops: float
    source: str  # of this card's figures

    @property
    def target(self) -> Target:
        return self.architecture.target

    @property
    def driver_names(self) -> tuple[str, ...]:
        """Return the drivers' names of the card, spaces as underscores: some AMD cards have two."""
        return (self.name, *(alias for alias in self.aliases if "_" in alias))

    @property
    def under_each_name(self) -> tuple[Device, ...]:
        """Return the card under each of its drivers' names: servers ask for files by them."""
        return tuple(replace(self, name=name) for name in self.driver_names)

    @property
    def vendor(self) -> str:
        """Return the first word of the names of its maker's cards: NVIDIA, AMD."""
        return self.name.partition("_")[0]

    @property
    def untested_vendor(self) -> str:
        """Return the vendor, if the prediction model was never compared with its cards; else ""."""
        return "" if self.target.platform == CUDA else self.vendor

    @property
    def shared_optin_bytes(self) -> int:
        return self.architecture.shared_optin_bytes

    @property
    def shared_limit(self) -> str:
        """Say the most shared memory of a block, as a line below a table."""
        return f"{self.name} has {self.shared_optin_bytes:,} bytes of shared memory a block"

    def peak_tflops(self, dtype: Dtype) -> float | None:
        """Return dense TFLOP/s (TOP/s) of the tensor cores for a dtype; None if they lack it."""
        if dtype is Dtype.FP8_W8A8:
            return self.fp8_tflops
        return self.int8_tops if dtype is Dtype.INT8_W8A8 else self.fp16_tflops

    def macs_per_clock(self, tflops: float) -> float:
        """Return the multiply-adds of an SM per clock when the whole device does `tflops`."""
        return tflops * 1e3 / 2 / self.sm_count / self.architecture.clock_ghz

    def as_json(self) -> dict[str, Any]:
        """Return the figures of a card and its architecture, for `tuner list devices --json`."""
        card, shared = asdict(self), asdict(self.architecture)
        del card["architecture"]
        target = shared["target"]  # users know its platform by Triton's name
        shared["target"] = {"backend": target.pop("platform"), **target}
        shared["arch_source"] = shared.pop("source")
        shared["launch_options"] = dict(self.architecture.launch_options)
        return {**card, "arch": self.target.arch, **shared}


def devices() -> tuple[Device, ...]:
    """Return every GPU of the table, in its order."""
    return _table().devices


def find_device(text: str) -> Device:
    """Return the GPU of that name or alias.

    Case, spaces, underscores, hyphens and a leading NVIDIA or AMD do not matter. Raises
    UnknownDevice, which names the nearest GPU, or says why the GPU is refused.
    """
    if device := _by_key().get(_key(text)):
        return device
    for spelling, arch in _table().too_old.items():
        if _key(spelling) == _key(text):
            raise UnknownDevice(
                f"{text} (sm_{arch}) is too old: Triton supports sm_{OLDEST_ARCH} and later "
                "(A100, A30 and newer)"
            )
    for spelling, reason in _table().refused.items():
        if _key(spelling) == _key(text):
            raise UnknownDevice(f"{text} {reason}")
    if found := other_maker(text):
        raise UnknownDevice(found[1])
    spellings = [spelling for d in devices() for spelling in (*d.aliases, d.name)]
    if near := did_you_mean(text, spellings):
        raise UnknownDevice(f"unknown device {text!r}{near}")
    raise UnknownDevice(f"unknown device {text!r}", **_LISTED)


def other_maker(text: str) -> tuple[str, str] | None:
    """Return a card in a text that is not NVIDIA's or AMD's, and a sentence on it."""
    text = text.replace("_", " ")
    for named, reason in _table().other_makers:
        if match := named.search(text):
            return match[0], f"{match[0]} {reason}; this tuner is for NVIDIA's and AMD's GPUs"
    return None


def spellings() -> tuple[str, ...]:
    """Return the spellings of all GPUs of the table, also of GPUs that are too old or refused."""
    table = _table()
    known = (one for card in table.devices for one in (card.name, *card.aliases))
    return (*known, *table.too_old, *table.refused)


def card_to_check(text: str) -> Device:
    """Return the GPU of that name, or a card of that compute capability (sm_120, 12.0).

    A card of a capability only decides whether kernels compile and fit: its other figures may
    differ. Raises UnknownDevice.
    """
    try:
        return find_device(text)
    except UnknownDevice as error:
        match = _CAPABILITY.fullmatch(text.strip())
        if match is None:
            if "too old" not in str(error) and not _OF_AMD.match(text.strip()):
                error.add(cli=_BY_CAPABILITY, api="")
            raise
    arch = int(match[1] + match[2])
    for card in devices():
        if card.target.is_sm(arch):
            return replace(card, name=f"sm_{arch}", aliases=())
    known = sorted({card.target.arch for card in devices() if isinstance(card.target.arch, int)})
    raise UnknownDevice(
        f"no known card has compute capability {match[1]}.{match[2]}: known are "
        f"{', '.join(f'sm_{one}' for one in known)}"
    )


def architecture(target: Target) -> Architecture:
    """Return the architecture of a target. Raises UnknownDevice if no known card has it."""
    for known in _table().architectures:
        if known.target == target:
            return known
    raise UnknownDevice(f"no known device is a {target.name}", **_LISTED)


def _key(text: str) -> str:
    key = re.sub(r"[\s_-]+", "", text).casefold()
    return key.removeprefix("nvidia").removeprefix("amd")


@cache
def _by_key() -> dict[str, Device]:
    named = {_key(text): one for one in devices() for text in (one.name, *one.aliases)}
    # A virtual machine's name of an AMD card, and so the name in the engines' config files there.
    virtual = {
        f"{key}vf": replace(device, name=f"{device.name}_VF", aliases=())
        for key, device in named.items()
        if device.name.startswith("AMD_Instinct")
    }
    return named | virtual


@cache
def _table() -> DeviceTable:
    return read_table(shipped_toml("tuner.devices", "devices.toml"))


@dataclass(frozen=True)
class DeviceTable:
    """The contents of a devices.toml."""

    devices: tuple[Device, ...]
    architectures: tuple[Architecture, ...]
    too_old: Mapping[str, int]  # spelling -> compute capability
    refused: Mapping[str, str]  # spelling -> why
    other_makers: Sequence[tuple[re.Pattern[str], str]] = ()  # how a card is named, and why not


def read_table(table: Mapping[str, Any]) -> DeviceTable:
    """Read the values of a devices.toml. Tests, not this function, check the package's table."""
    known = {name: _architecture(name, row) for name, row in table["arch"].items()}
    cards = tuple(_device(row, known[str(row["arch"])]) for row in table["device"])
    others = [(re.compile(row["named"]), row["reason"]) for row in table.get("other_maker", ())]
    return DeviceTable(cards, tuple(known.values()), table["too_old"], table["refused"], others)


def _architecture(name: str, row: dict[str, Any]) -> Architecture:
    fields = dict(row)
    platform, warp_size = fields.pop("backend"), fields.pop("warp_size")
    options = fields.pop("launch_options", {})
    return Architecture(
        target=Target(platform, int(name) if platform == CUDA else name, warp_size),
        fp8_type=fields.pop("fp8_type", None),
        launch_options=tuple((option, tuple(values)) for option, values in options.items()),
        **fields,
    )


def _device(row: dict[str, Any], architecture: Architecture) -> Device:
    return Device(
        name=row["name"],
        aliases=tuple(row["aliases"]),
        architecture=architecture,
        sm_count=row["sm_count"],
        memory_bytes=row["memory_gib"] << 30,
        l2_bytes=row["l2_mib"] << 20,
        bandwidth_gbs=float(row["bandwidth_gbs"]),
        fp16_tflops=float(row["fp16_tflops"]),
        fp8_tflops=float(row["fp8_tflops"]) if "fp8_tflops" in row else None,
        int8_tops=float(row["int8_tops"]),
        source=row["source"],
    )
