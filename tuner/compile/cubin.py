"""Read a kernel's registers and local memory per thread from its cubin.

A cubin is a 64-bit ELF file. Its `.nv.info*` sections list attributes: a format byte, an attribute
byte and two bytes of value or size; format 4 is followed by `size` bytes. The attributes' numbers
are EIATTR_REGCOUNT and EIATTR_FRAME_SIZE in `cuobjdump -elf`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tuner.compile.elf import sections

EIFMT_SVAL = 4
EIATTR_FRAME_SIZE = 0x11
EIATTR_REGCOUNT = 0x2F


def resources(cubin: bytes) -> tuple[int, int]:
    """Return (registers, bytes of local memory) of a thread, for the only kernel of a cubin.

    Registers spill to local memory. The driver reports the same number
    (CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES); Triton's own `n_spills` is a quarter of it.
    """
    found = {EIATTR_REGCOUNT: 0, EIATTR_FRAME_SIZE: 0}
    for section in sections(cubin, b".nv.info"):
        for attribute, value in _attributes(section):
            if attribute in found:  # value: the function's symbol, then the number
                found[attribute] = max(found[attribute], struct.unpack_from("<4xI", value)[0])
    return found[EIATTR_REGCOUNT], found[EIATTR_FRAME_SIZE]


def _attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(section):
        kind, attribute, size = struct.unpack_from("<BBH", section, at)
        at += 4
        if kind == EIFMT_SVAL:
            yield attribute, section[at : at + size]
            at += size
