"""What an offline pack leaves of libraries with code for many GPUs."""

import mmap
import struct
from pathlib import Path
from types import ModuleType

import pytest
from benchmark_scripts import load_script

BF16 = b"ENS_10bfloat16_tEfNS_4arch4Sm90ELb%dELb0ELb%dELb1E"
HEADER = 64


@pytest.fixture(scope="module")
def fat_binaries():
    return load_script("offline/fat_binaries.py")


def fat(*images: tuple[int, bytes]) -> bytes:
    """A fat binary of images for one architecture each."""
    parts = [
        struct.pack("<HHIQ12xI", 2, 257, HEADER, len(payload), architecture).ljust(HEADER, b"\x11")
        + payload
        for architecture, payload in images
    ]
    body = b"".join(parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def left(module: ModuleType, path: Path) -> list[tuple[int, bool]]:
    """(architecture, whether its payload is there) of each image."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return [
            (image.architecture, any(data[image.payload : image.end]))
            for image in module.images(data)
        ]


def test_only_code_for_the_gpu_is_left(fat_binaries, tmp_path):
    path = tmp_path / "common_ops.so"
    library = b"host code" * 5 + fat((90, b"a" * 24), (80, b"b" * 40)) + b"\0" * 9
    library += fat((100, b"c" * 8), (90, b"\x28\xb5\x2f\xfd")) + b"end"
    path.write_bytes(library)
    assert fat_binaries.blank(path) == 2
    assert left(fat_binaries, path) == [(90, True), (80, False), (80, False), (90, True)]
    assert path.stat().st_size == len(library)
    changed = path.read_bytes()
    assert (changed[:45], changed[-3:]) == (library[:45], library[-3:])


def test_attention_keeps_the_kernels_that_servers_call(fat_binaries, tmp_path, subtests):
    kernels = {
        b"ELi128" + BF16 % (0, 0): True,
        b"ELi512" + BF16 % (1, 0): True,
        b"ELi256" + BF16 % (0, 0): False,  # heads that were not asked for
        b"ELi128" + BF16 % (0, 1): False,  # a logit cap
        b"ELi128ENS_6half_tEfNS_4arch4Sm90ELb0ELb0ELb0E": False,
        b"_ZN5flash32prepare_varlen_num_blocks_kernelILi1E": True,
        b"flash19FlashAttnFwdCombineI": True,
        b"": False,  # compressed: no names
    }
    for name, kept in kernels.items():
        with subtests.test(name=name):
            path = tmp_path / "flash_ops.so"
            path.write_bytes(fat((90, b".text." + name), (80, b".text." + name)))
            assert fat_binaries.blank(path, fat_binaries.flash_attention("128|512")) == kept
            assert left(fat_binaries, path) == [(90 if kept else 80, kept), (80, False)]
