"""What servers are told and asked exists in the engines' own source, release by release."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_sglang import package as sglang_package
from real_vllm import package as vllm_package

from tuner.engines.launch import unknown_flags
from tuner.engines.server import Server, ServerLaunch, server_of
from tuner.engines.sglang.package import SGLang

SGLANG = ["0.5.2", "0.5.12", "0.5.16", "0.5.23"]
VLLM = ["0.10.2", "0.15.1", "0.24.0", "0.33.0"]


def launch(version: str) -> ServerLaunch:
    return ServerLaunch(version, "/m", 8000, 2, (), dummy=True, memory=0.4)


def fields(files: Iterator[Path], name: str) -> set[str]:
    """The fields of a class and of its bases, as far as they are in these files."""
    classes = {
        node.name: node
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }

    def own(wanted: str) -> set[str]:
        if wanted not in classes:
            return set()
        found = {
            part.target.id
            for part in classes[wanted].body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        bases = (base.id for base in classes[wanted].bases if isinstance(base, ast.Name))
        return found.union(*map(own, bases))

    return own(name)


def posts(server: Server) -> dict[str, set[str]]:
    """The fields of all bodies by their paths."""
    found: dict[str, set[str]] = {}
    for post in (server.stream([1, 2], 4), server.greedy([1, 2], 4)):
        found.setdefault(post.path, set()).update(post.body)
    return found


@pytest.mark.parametrize("version", SGLANG)
def test_sglang(version: str) -> None:
    root, server = sglang_package(version), server_of("sglang")
    module, *words = server.command(launch(version))
    assert module.endswith("dummy_server") and (root / "launch_server.py").is_file()
    assert unknown_flags(SGLang(version, root), words) == []
    asked = posts(server)
    structures = root / "srt/managers/io_struct.py"
    assert asked["/generate"] <= fields(iter([structures]), "GenerateReqInput")
    sampling = fields(iter([root / "srt/sampling/sampling_params.py"]), "SamplingParams")
    if not sampling:  # a plain class: its parameters
        sampling = {
            *(root / "srt/sampling/sampling_params.py").read_text().replace(":", " ").split()
        }
    assert {*server.stream([1], 1).body["sampling_params"]} <= sampling
    source = (root / "srt/entrypoints/http_server.py").read_text(encoding="utf-8")
    assert all(f'"{path}"' in source for path in (*asked, server.ready_path))


@pytest.mark.parametrize("version", VLLM)
def test_vllm(version: str) -> None:
    root, server = vllm_package(version), server_of("vllm")
    module, *words = server.command(launch(version))
    assert module.endswith("dummy_server")
    source = root / "entrypoints"
    assert (source / "openai/api_server.py").is_file()
    asked = posts(server)
    assert asked["/v1/completions"] <= fields(source.rglob("*.py"), "CompletionRequest")
    told = {*server.stream([1], 1).body["stream_options"]}
    assert told <= fields(source.rglob("*.py"), "StreamOptions")
    routes = "\n".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    assert all(f'"{path}"' in routes for path in (*asked, server.ready_path))
    texts = routes + (root / "engine/arg_utils.py").read_text(encoding="utf-8")
    flags = [word for word in words if word.startswith("--")]
    names = {flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in flags}
    assert {name for name in names if name not in texts} == set()
    assert '__name__ == "__main__"' in (source / "openai/api_server.py").read_text(encoding="utf-8")
