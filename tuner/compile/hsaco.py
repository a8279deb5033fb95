"""Read a kernel's registers and scratch memory from its hsaco, AMD's machine code.

An hsaco is an ELF file. Its note of type NT_AMDGPU_METADATA holds a MessagePack map, which the LLVM
user guide for AMDGPU documents ("Code Object V3 and above Metadata"). MessagePack is read here,
because the base install brings no package for it and an engine's environment may have none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from tuner.compile.elf import sections

NT_AMDGPU_METADATA = 32


@dataclass(frozen=True)
class HsacoResources:
    """The resources of a kernel, each for a thread (a lane of a wavefront)."""

    vgprs: int  # vector registers, AGPRs included if one file holds both (gfx90a and later CDNA)
    agprs: int  # the vector registers that only matrix instructions can use
    spilled_vgprs: int  # registers that are kept in scratch memory or in AGPRs instead
    scratch_bytes: int  # private memory; spilled registers lie here
    lds_bytes: int  # without the launch's own bytes, which are all of them for Triton


def read_resources(hsaco: bytes) -> HsacoResources:
    """Return the resources of the first kernel. Raises ValueError for a file without its note."""
    kernel = _metadata(hsaco)["amdhsa.kernels"][0]
    return HsacoResources(
        kernel[".vgpr_count"],
        kernel.get(".agpr_count", 0),
        kernel.get(".vgpr_spill_count", 0),
        kernel[".private_segment_fixed_size"],
        kernel[".group_segment_fixed_size"],
    )


def resources(hsaco: bytes) -> tuple[int, int]:
    """Return (registers, bytes of scratch memory) of a thread, for the only kernel of an hsaco."""
    found = read_resources(hsaco)
    return found.vgprs, found.scratch_bytes


def _metadata(elf: bytes) -> dict[str, Any]:
    for notes in sections(elf, b".note"):
        at = 0
        while at < len(notes):
            name_size, size, kind = struct.unpack_from("<III", notes, at)
            content = at + 12 + _aligned(name_size)
            if kind == NT_AMDGPU_METADATA:
                found: dict[str, Any] = _value(notes[content : content + size], 0)[0]
                return found
            at = content + _aligned(size)
    raise ValueError("the hsaco has no note of type NT_AMDGPU_METADATA")


def _aligned(size: int) -> int:
    """Return a size in a note, padded to whole words."""
    return -(-size // 4) * 4


# MessagePack: https://github.com/msgpack/msgpack/blob/master/spec.md. Kinds by their first byte;
# struct reads the number after it. Floats, bytes and extensions do not occur in the note.
_NUMBERS = {0xCC + i: f">{letter}" for i, letter in enumerate("BHIQbhiq")}
_SIZES = {0xD9 + i: f">{letter}" for i, letter in enumerate("BHIHIHI")}


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """Return the value that begins at an offset, and the offset behind it."""
    kind, at = data[at], at + 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 0x100, at
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    if kind in _NUMBERS:
        return struct.unpack_from(_NUMBERS[kind], data, at)[0], at + struct.calcsize(_NUMBERS[kind])
    if kind in _SIZES:  # str 8 to 32, array 16 and 32, map 16 and 32
        size = struct.unpack_from(_SIZES[kind], data, at)[0]
        at += struct.calcsize(_SIZES[kind])
        kind = 0xA0 if kind < 0xDC else 0x90 if kind < 0xDE else 0x80
    elif kind < 0xC0:
        size = kind & (0x1F if kind >= 0xA0 else 0x0F)
        kind &= 0xE0 if kind >= 0xA0 else 0xF0
    else:
        raise ValueError(f"MessagePack of kind {kind:#x} is not read")
    return _sequence(data, at, kind, size)


def _sequence(data: bytes, at: int, kind: int, size: int) -> tuple[Any, int]:
    """Read a string (0xA0), an array (0x90) or a map (0x80) of `size` elements."""
    if kind == 0xA0:
        return data[at : at + size].decode(), at + size
    items = []
    for _ in range(size * (2 if kind == 0x80 else 1)):
        item, at = _value(data, at)
        items.append(item)
    return (items if kind == 0x90 else dict(zip(items[::2], items[1::2], strict=True))), at
