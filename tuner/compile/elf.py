"""Read the sections of a 64-bit little-endian ELF file, the format of both vendors'
machine code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator


def sections(elf: bytes, prefix: bytes) -> Iterator[bytes]:
    """Yield the contents of the sections whose names start with `prefix`."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, name_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[name_index][4]
    for name, _, _, _, offset, length in headers:
        if elf.startswith(prefix, names + name):
            yield elf[offset : offset + length]
