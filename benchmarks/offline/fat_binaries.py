"""Blanks GPU code in a library that was compiled for many GPUs, so that an archive packs it small.

A fat binary is a header, and then images for one architecture each, with headers of their own. A
blanked image is zeros, and its header names an architecture that the GPU cannot run: CUDA then says
that it has no kernel for this GPU, as if the image had not been compiled. The file keeps its size.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KEPT, NEVER = 90, 80  # sm_90 takes no image of sm_80
_FAT = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the images
_IMAGE = struct.Struct("<4xIQ12xI")  # bytes of this header, bytes of the payload, architecture
_BEGIN = _FAT.pack(0xBA55ED50, 1, _FAT.size, 0)[:8]
EVERY_KERNEL = re.compile(b"")


def flash_attention(columns: str) -> re.Pattern[bytes]:
    """What servers call of FlashAttention 3 for values of so many columns ("128|512") in bfloat16,
    with the third switch (a logit cap) off. Compressed images have no names, and repeat others.
    """
    return re.compile(
        rb"ELi(?:%s)ENS_10bfloat16_tEfNS_4arch4Sm90ELb\dELb\dELb0E"
        rb"|prepare_varlen_num_blocks_kernel|FlashAttnFwdCombine" % columns.encode()
    )


class Image(NamedTuple):
    """Where an image of a fat binary lies in its file, in bytes."""

    header: int
    payload: int
    end: int
    architecture: int


def blank(library: Path, needed: re.Pattern[bytes] = EVERY_KERNEL) -> int:
    """Leave the images for sm_90 that have a needed kernel. Returns how many these are."""
    kept = 0
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for image in images(data):
            if image.architecture == KEPT and needed.search(data, image.payload, image.end):
                kept += 1
                continue
            struct.pack_into("<I", data, image.header + _IMAGE.size - 4, NEVER)
            data[image.payload : image.end] = bytes(image.end - image.payload)
    return kept


def images(data: mmap.mmap) -> Iterator[Image]:
    """The images of all fat binaries in a library."""
    at = data.find(_BEGIN)
    while at >= 0:
        *_, size = _FAT.unpack_from(data, at)
        at += _FAT.size
        end = at + size
        while at < end:
            header, payload, architecture = _IMAGE.unpack_from(data, at)
            yield Image(at, at + header, at + header + payload, architecture)
            at += header + payload
        at = data.find(_BEGIN, end)
