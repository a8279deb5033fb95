"""Packs what the benchmarks and the tests on a GPU need, for a host without a network.

    python benchmarks/offline/pack.py OUT.tar.xz [--served] [--engines sglang-0.5.16,vllm-0.33.0]
                                                 [--python 3.12] [--there numpy,torch,...]

The host has torch, triton and numpy, and `--there` names other packages that it has. Unpacked, OUT
has site/, for PYTHONPATH behind a checkout, and engines/, for TUNER_ENGINE_PATH. These are the
Python files of the `--engines`, which `tuner list engines --add` has put beside this Python.

With `--served`, the servers of sglang 0.5.16 start there too, with the variables of served_env.sh
and on GPUs of sm_90 alone. Do not run two of these at once: both build this project in one folder.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
MANYLINUX = ("_2_34", "_2_28", "_2_27", "_2_24", "_2_17", "2014")  # pip matches each exactly
MUST_BE_THERE = ("nvidia", "numpy", "torch", "triton")
# No benchmark reads these folders of a package.
LEFT_OUT = {"tests", "test", "_tests", "__pycache__", "multimodal_gen"}
LEFT_OUT_OF_ENGINES = {"models", "multimodal", "entrypoints", *LEFT_OUT}
# For other backends than servers choose, and for GPUs that are not an H100 or H200.
UNUSED_LIBRARIES = tuple(
    f"sgl_kernel/{name}.so"
    for name in (
        *("flashmla_ops.abi3", "sm100/common_ops.abi3"),
        "infllm_ops.cpython-310-x86_64-linux-gnu",
    )
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--served", action="store_true")
    parser.add_argument("--engines", default="sglang-0.5.16,sglang-0.5.23,vllm-0.24.0,vllm-0.33.0")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--there", default="", help="packages that the host has, with commas")
    options = parser.parse_args()
    there = {*MUST_BE_THERE, *filter(None, options.there.split(","))}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for wheel in downloaded(root / "wheels", options.python, served=options.served):
            if not is_there(wheel, there):
                unpack(wheel, root / "site")
        libraries = [one for one in (root / "site").rglob("*.so") if "sgl_kernel" not in one.parts]
        subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)
        for name in filter(None, options.engines.split(",")):
            copy_engine(name, root / "engines")
        with tarfile.open(options.out, "w:xz", preset=5) as archive:
            for part in ("site", "engines"):
                if (root / part).is_dir():
                    archive.add(root / part, part)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")


def downloaded(wheels: Path, python: str, *, served: bool) -> list[Path]:
    """The wheels of this project and of what it needs, and with `served` those of sglang."""
    pip: list[str | Path] = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--no-deps", "-qw", wheels, HERE.parents[1]], check=True)
    binary = [*pip, "download", "-qd", wheels, "--only-binary=:all:", "--python-version", python]
    binary += ["--implementation", "cp", "--find-links", wheels]
    for version in MANYLINUX:
        binary += ["--platform", f"manylinux{version}_x86_64"]
    # No other release of a package than sglang's.
    pins = ["-c", HERE / "sglang-0.5.16.txt"] if served else []
    subprocess.run([*binary, *pins, "-r", HERE / "tuner.txt"], check=True)
    if served:
        subprocess.run([*binary, "--no-deps", "-r", HERE / "sglang-0.5.16.txt"], check=True)
    return sorted(wheels.glob("*.whl"))


def is_there(wheel: Path, there: set[str]) -> bool:
    name = wheel.name.partition("-")[0].lower().replace("_", "-")
    return any(name == one or name.startswith(f"{one}-cu") for one in there)


def unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        kept = [n for n in archive.namelist() if not LEFT_OUT & {*n.split("/")[:-1]}]
        for name in kept:
            if not name.endswith((".pyi", "/", *UNUSED_LIBRARIES)):
                archive.extract(name, site)


def copy_engine(name: str, engines: Path) -> None:
    """The files of an engine's package that bindings, loaders and launchers are read from."""
    source = Path(sys.prefix, "share", "tuner", "engines", name)
    if not source.is_dir():
        sys.exit(
            f"{source} is missing: run `tuner list engines --add {name.replace('-', '==', 1)}`"
        )

    def left_out(folder: str, names: Sequence[str]) -> set[str]:
        files = {n for n in names if Path(folder, n).is_file() and not _is_read(Path(folder, n))}
        return files | (LEFT_OUT_OF_ENGINES & {*names})

    shutil.copytree(source, engines / name, ignore=left_out)


def _is_read(path: Path) -> bool:
    return path.suffix in (".py", ".json") or path.parent.name.endswith(".dist-info")


if __name__ == "__main__":
    main()
