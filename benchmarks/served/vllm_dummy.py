"""vLLM's server with dummy weights of a trained model's size; run with `python -m`.

vLLM may start its workers as new processes, which import this module again before they load a
model. So the replacements are at the module's top.
"""

from __future__ import annotations

import runpy
from typing import Any

from vllm.model_executor.model_loader import dummy_loader

from benchmarks.served.dummy_weights import fill_weight, fill_weights

# Releases since 0.24 fill single tensors too, and since 0.33 nothing else.
_single = getattr(dummy_loader, "initialize_single_dummy_weight", None)


def _fill_single(tensor: Any, *args: Any, name: str = "", **options: Any) -> None:  # noqa: ANN401
    own = getattr(tensor, "dummy_weight_value", None) is not None
    if own or not fill_weight(tensor, name):
        assert _single is not None
        _single(tensor, *args, **({"name": name} if name else {}), **options)


dummy_loader.initialize_dummy_weights = fill_weights
if _single is not None:
    dummy_loader.initialize_single_dummy_weight = _fill_single

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)
