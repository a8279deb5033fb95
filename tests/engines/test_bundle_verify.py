"""Verifying: everything that is not as it was made is refused with its reason."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_cases import built, files_of, place, repack, sealed
from draws import times
from hypothesis import given
from hypothesis import strategies as st

from tuner.deploy.bundle import archive as limits
from tuner.deploy.bundle.archive import BundleFile, pack
from tuner.deploy.bundle.manifest import check_bundle, verify
from tuner.errors import BadInput, BundleRefused

RAY = "cluster-h20-2x8-vllm"
ROOT = "h20-2x8-vllm-NVIDIA_H20"


def refusal(data: bytes) -> str:
    with pytest.raises(BundleRefused) as caught:
        check_bundle(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_manifest(change: Callable[[dict[str, Any]], object]) -> bytes:
    manifest = json.loads(files_of(built(RAY))["MANIFEST.json"].data)
    change(manifest)
    return repack(built(RAY), {"MANIFEST.json": BundleFile(sealed(manifest))})


def with_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **fields: Any) -> bytes:
    """The archive with one more member, whatever it is."""
    out = io.BytesIO(gzip.decompress(built(RAY).archive))
    with tarfile.open(fileobj=out, mode="a", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        for field, value in fields.items():
            setattr(info, field, value)
        tar.addfile(info, io.BytesIO(b""))
    return gzip.compress(out.getvalue(), mtime=0)


def test_what_was_made_holds() -> None:
    assert check_bundle(built(RAY).archive) == built(RAY).manifest


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def changed_files() -> dict[str, dict[str, BundleFile | None]]:
    """What is said of files that were changed, by the changes."""
    files = files_of(built(RAY))
    sweep, readme = files["sweep.sh"].data, files["README.md"].data
    manifest = files["MANIFEST.json"].data
    return {
        "'sweep.sh' was changed: its SHA-256 is not the one in MANIFEST.json": {
            "sweep.sh": BundleFile(flipped(sweep, 100), 0o755)
        },
        "'nodes/extra.sh' is not listed in MANIFEST.json": {
            "nodes/extra.sh": BundleFile(b"rm -rf /\n", 0o755)
        },
        "'preflight.py' is listed in MANIFEST.json and missing": {"preflight.py": None},
        "'README.md' has 5 bytes, not": {"README.md": BundleFile(b"short")},
        "'README.md' has the mode 0755, not 0644": {"README.md": BundleFile(readme, 0o755)},
        "'sweep.sh' has the mode 4755, not 0755": {"sweep.sh": BundleFile(sweep, 0o4755)},
        "'MANIFEST.json' has the mode 0666, not 0644": {
            "MANIFEST.json": BundleFile(manifest, 0o666)
        },
        "the archive holds no MANIFEST.json": {"MANIFEST.json": None},
        "is not JSON": {"MANIFEST.json": BundleFile(b"{")},
        "is given twice": {"MANIFEST.json": BundleFile(b'{"kind": 1, "kind": 2}')},
    }


def test_changed_files_are_refused(subtests: pytest.Subtests) -> None:
    for said, changes in changed_files().items():
        with subtests.test(said):
            assert said in refusal(repack(built(RAY), changes))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../escape", "leads out of the bundle"),
        (f"{ROOT}/../../escape", "leads out of the bundle"),
        ("/etc/passwd", "is not a relative path of plain names"),
        (f"{ROOT}//twice", "is not a relative path of plain names"),
        (f"{ROOT}/./here", "is not a relative path of plain names"),
        (f"{ROOT}/..\\windows", "is not a relative path of plain names"),
        (f"{ROOT}/\x1b[2J", "is not a relative path of plain names"),
        ("elsewhere/file", f"does not lie in the folder '{ROOT}'"),
        (ROOT, f"does not lie in the folder '{ROOT}'"),
        (f"{ROOT}/README.md", "is in the archive twice"),
    ],
)
def test_a_path_that_does_not_belong(name: str, said: str) -> None:
    assert said in refusal(with_member(name))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tarfile.SYMTYPE, "is a link, to '/etc/passwd'"),
        (tarfile.LNKTYPE, "is a link, to '/etc/passwd'"),
        (tarfile.CHRTYPE, "is a device or a pipe"),
        (tarfile.FIFOTYPE, "is a device or a pipe"),
        (tarfile.DIRTYPE, "the archive was repacked, or holds more than its files"),
        (tarfile.CONTTYPE, "is not a plain file"),
    ],
)
def test_a_member_that_is_no_file(kind: bytes, said: str) -> None:
    assert said in refusal(with_member(f"{ROOT}/x", kind, "/etc/passwd"))


def test_what_tar_packs_again_is_refused_for_what_was_changed(tmp_path: Path) -> None:
    root = place(built(RAY), tmp_path)

    def repacked() -> str:
        done = subprocess.run(
            ["tar", "cz", root.name], cwd=tmp_path, capture_output=True, check=True
        )
        return refusal(done.stdout)

    assert repacked() == "the archive was repacked, or holds more than its files"
    script = root / "sweep.sh"
    script.write_text(script.read_text().replace("runs=3", "runs=4"))
    assert repacked().startswith("'sweep.sh' was changed")
    script.unlink()
    assert repacked() == "'sweep.sh' is listed in MANIFEST.json and missing"
    script.symlink_to("/etc/passwd")
    assert repacked().endswith("is a link, to '/etc/passwd'")


def test_the_manifest_cannot_lead_out_either() -> None:
    def escape(manifest: dict[str, Any]) -> None:
        manifest["files"].insert(0, {**manifest["files"][0], "path": "../x"})

    assert refusal(with_manifest(escape)) == "'../x' leads out of the bundle"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (1, "the older format 1, this version reads 2: bundle again"),
        (3, "the newer format 3, this version reads 2: update the tuner"),
        ("1", "names no format"),
        (None, "names no format"),
        (True, "names no format"),
    ],
)
def test_another_format(version: object, said: str) -> None:
    assert said in refusal(with_manifest(lambda m: m.update(format=version)))


def test_a_flipped_byte_of_the_manifest() -> None:
    data = files_of(built(RAY))["MANIFEST.json"].data
    said = "MANIFEST.json was changed: its digest does not match its content"
    for old, new in (
        (b'"reason": "1.200x', b'"reason": "9.200x'),
        (b'\n "name"', b'\t "name"'),
        (b'"digest"', b'"digess"'),
    ):
        assert old in data
        changed = BundleFile(data.replace(old, new))
        assert refusal(repack(built(RAY), {"MANIFEST.json": changed})) == said
    deep = b"[" * 900 + b"]" * 900
    nested = data.replace(b'"notes": [', b'"notes": [' + deep + b",")
    assert refusal(repack(built(RAY), {"MANIFEST.json": BundleFile(nested)}))


def test_what_is_no_bundle_or_more_than_one() -> None:
    data, manifest = built(RAY).archive, files_of(built(RAY))["MANIFEST.json"]
    tar = gzip.decompress(data)
    owned = bytearray(tar)
    owned[108:116] = b"0001750\0"  # the first member's owner, whose checksum then is another
    for said, archive in (
        ("is not of an engine-tuner bundle", pack("x", {"MANIFEST.json": BundleFile(b"{}")})),
        ("and the folder is 'other'", pack("other", {"MANIFEST.json": manifest})),
        ("the archive is cut off", b""),
        ("the archive is cut off", data[:-9]),
        ("no gzip file", b"hello"),
        ("the archive is no gzip file, or a damaged one", flipped(data, len(data) // 2)),
        ("no tar", gzip.compress(b"hello" * 300)),
        ("bytes follow the end of the archive", data + b"more"),
        ("bytes follow the end of the archive", data + data),
        ("the archive was repacked, or holds", gzip.compress(tar + bytes(1024) + b"hidden" * 512)),
        ("", gzip.compress(bytes(owned))),
    ):
        assert said in refusal(archive)


def test_a_decompression_bomb_is_stopped_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    bomb = b"".join(packer.compress(block) for _ in range(257)) + packer.flush()
    assert len(bomb) < 1 << 20
    assert refusal(bomb) == "the archive unpacks to more than 256 MiB"
    monkeypatch.setattr(limits, "MOST_FILES", 5)
    assert refusal(built(RAY).archive) == "the archive holds more than 5 files"
    monkeypatch.setattr(limits, "LARGEST_ARCHIVE", 1 << 10)
    assert "the archive is larger than" in refusal(built(RAY).archive)


def test_a_file_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BadInput, match="cannot be read"):
            verify(path)


def test_nothing_a_bundle_says_acts_on_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_bytes(with_manifest(lambda m: m["notes"].append("\x1b[2Jgone\nline")))
    assert "note:  [2Jgone line" in verify(path).as_text()


# Noise


@times(2)
@given(st.randoms(use_true_random=False), st.booleans())
def test_noise_in_an_archive_is_refused(noise: random.Random, inside: bool) -> None:
    """Bytes replaced, cut and inserted: in the gzip file, or in the tar that it holds."""
    whole = gzip.decompress(built(RAY).archive) if inside else built(RAY).archive
    data = bytearray(whole)
    for _ in range(noise.randint(1, 4)):
        # Headers stand at multiples of 512: half of the noise goes there.
        at = noise.randrange(len(data))
        at = at - at % 512 + noise.randrange(512) if noise.random() < 0.5 else at
        length = noise.choice([1, 1, 1, 12, 512])
        at = min(at, len(data) - 1)
        action = noise.randrange(3)
        if action == 0:
            data[at : at + length] = noise.randbytes(length)
        elif action == 1:
            del data[at : at + length]
        else:
            data[at:at] = noise.randbytes(length)
    if bytes(data) == whole:
        return
    try:
        check_bundle(gzip.compress(bytes(data), 1) if inside else bytes(data))
    except BundleRefused as error:
        assert str(error)
    else:
        # gzip's own header may differ (its time, its system): the content may not.
        assert not inside
        assert gzip.decompress(bytes(data)) == gzip.decompress(whole)


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@times(2)
@given(st.randoms(use_true_random=False), _JUNK)
def test_noise_in_a_manifest_never_gives_a_traceback(noise: random.Random, junk: object) -> None:
    manifest = json.loads(files_of(built(RAY))["MANIFEST.json"].data)
    target: Any = manifest
    while True:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        key = noise.choice(keys)
        if not isinstance(target[key], (dict, list)) or not target[key] or noise.random() < 0.3:
            target[key] = junk
            break
        target = target[key]
    data = repack(built(RAY), {"MANIFEST.json": BundleFile(sealed(manifest))})
    try:
        check_bundle(data)
    except BundleRefused as error:
        assert str(error)


@times(2)
@given(st.binary(max_size=300))
def test_noise_is_no_bundle(data: bytes) -> None:
    for archive in (data, gzip.compress(data), pack("x", {"MANIFEST.json": BundleFile(data)})):
        refusal(archive)
