"""The components of a bundle, as a CycloneDX 1.5 document.

It holds no time and no random serial number, so equal bundles give equal documents.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from tuner.deploy.bundle.manifest import sha256
from tuner.deploy.cluster import Cluster
from tuner.engines.engine import Engine


def sbom_text(
    name: str, cluster: Cluster, engine: Engine, tritons: list[str], files: dict[str, bytes]
) -> str:
    """The document with this tool, the engine, Triton's versions, the image, and hashes of `files`.

    `files` are the engine's config files and the preflight script.
    """
    tool = _library("engine-tuner", version("engine-tuner"), "Apache-2.0")
    components = [tool, _library(engine.name, engine.version, "Apache-2.0")]
    components += [_library("triton", triton, "MIT") for triton in tritons]
    if image := cluster.engine.image:
        components.append({"type": "container", "bom-ref": f"image:{image}", "name": image})
    components += [_file(path, data) for path, data in sorted(files.items())]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "tools": {"components": [tool]},
            "component": {"type": "data", "bom-ref": name, "name": name},
        },
        "components": components,
        "dependencies": [{"ref": name, "dependsOn": [c["bom-ref"] for c in components]}],
    }
    return json.dumps(document, indent=2) + "\n"


def _library(name: str, release: str, license_id: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{release}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": release,
        "purl": purl,
        "licenses": [{"license": {"id": license_id}}],
    }


def _file(path: str, data: bytes) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": sha256(data)}]
    return {"type": "file", "bom-ref": f"file:{path}", "name": path, "hashes": hashes}
