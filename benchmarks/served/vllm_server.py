"""How vLLM's server is started and asked.

Source: entrypoints/openai of releases 0.10.2 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.served.server import Answer, Post, ServerLaunch, flag_value

# This module starts the server too, after it has replaced the values of dummy weights.
_DUMMY_SERVER = "benchmarks.served.vllm_dummy"
_SERVER = "vllm.entrypoints.openai.api_server"
_NAME = "served"
_PATH = "/v1/completions"
_BACKEND_FLAG = "--attention-backend"


class VLLMServer:
    """See `benchmarks.served.server.Server`."""

    ready_path = "/health"
    memory_shares = (0.42, 0.42)  # of the whole memory, whatever others use

    def command(self, launch: ServerLaunch) -> list[str]:
        words = [_DUMMY_SERVER if launch.dummy else _SERVER, "--model", launch.model]
        words += ["--host", "127.0.0.1", "--port", str(launch.port)]
        words += ["--served-model-name", _NAME, "--tensor-parallel-size", str(launch.tp)]
        # A prompt that was seen must be computed anew.
        words += ["--no-enable-prefix-caching"]
        if launch.dummy:
            words += ["--load-format", "dummy"]
        if launch.memory is not None:
            words += ["--gpu-memory-utilization", f"{launch.memory:g}"]
        return [*words, *launch.args]

    def stream(self, prompt: Sequence[int], tokens: int) -> Post:
        told = {"include_usage": True, "continuous_usage_stats": True}
        return Post(_PATH, {**_body(prompt, tokens), "stream": True, "stream_options": told})

    def streamed(self, event: Mapping[str, Any]) -> int:
        return int(event["usage"]["completion_tokens"])

    def greedy(self, prompt: Sequence[int], tokens: int) -> Post:
        asked = {"logprobs": 0, "prompt_logprobs": 0, "return_tokens_as_token_ids": True}
        return Post(_PATH, {**_body(prompt, tokens), **asked})

    def answer(self, body: Mapping[str, Any]) -> Answer:
        choice = body["choices"][0]
        given = [next(iter(row.values())) for row in choice["prompt_logprobs"] if row]
        return Answer(
            tuple(float(row["logprob"]) for row in given),
            tuple(int(name.removeprefix("token_id:")) for name in choice["logprobs"]["tokens"]),
            tuple(float(one) for one in choice["logprobs"]["token_logprobs"]),
        )

    def backend(self, args: Sequence[str], phase: str) -> str | None:
        return flag_value(args, _BACKEND_FLAG)

    def backend_flags(self, prefill: str, decode: str) -> str:
        if prefill == decode:
            return f"{_BACKEND_FLAG} {prefill}"
        return f"{_BACKEND_FLAG} {decode}, or {prefill} where prompts count more"


open_server = VLLMServer


def _body(prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    return {"model": _NAME, "prompt": list(prompt), **sampling}
