"""Define compile targets: kinds of GPUs as a compiler distinguishes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

CUDA, HIP = "cuda", "hip"


@dataclass(frozen=True)
class Target:
    """A compile target, with the fields of Triton's GPUTarget."""

    platform: str  # "cuda" or "hip"
    arch: int | str  # CUDA: the compute capability as one number (89 for sm_89); HIP: "gfx942"
    warp_size: int  # threads

    @property
    def name(self) -> str:
        """Return the usual name: sm_89, gfx942."""
        return f"sm_{self.arch}" if self.platform == CUDA else str(self.arch)

    @property
    def capability(self) -> tuple[int, int]:
        """Return (major, minor) as `torch.cuda.get_device_capability` does on both platforms."""
        if isinstance(self.arch, int):
            return divmod(self.arch, 10)
        found = re.fullmatch(r"gfx(\d+)(\d)[0-9a-f]", self.arch)
        assert found, f"{self.arch} is no AMD architecture"
        return int(found[1]), int(found[2])

    @property
    def sm(self) -> int:
        """Return the capability as a number, as sglang's `get_device_sm` does on both platforms."""
        major, minor = self.capability
        return major * 10 + minor

    def is_sm(self, arch: int) -> bool:
        """Say whether it is this CUDA architecture and no other."""
        return self.platform == CUDA and self.arch == arch

    def is_sm_or_later(self, arch: int) -> bool:
        """Say whether it is this CUDA architecture or a later; False on every other platform."""
        return self.platform == CUDA and isinstance(self.arch, int) and self.arch >= arch

    def is_gfx(self, major: int, minor: int) -> bool:
        """Say whether it is AMD's architecture of that HIP capability: (9, 5) is gfx950."""
        return self.platform == HIP and self.capability == (major, minor)

    def is_gfx_or_later(self, major: int, minor: int) -> bool:
        """Say whether it is AMD's architecture of that HIP capability or a later."""
        return self.platform == HIP and self.capability >= (major, minor)


def cuda_target(major: int, minor: int) -> Target:
    """Return the target of a GPU of that compute capability."""
    return Target(CUDA, major * 10 + minor, 32)
