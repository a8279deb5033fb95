"""How sglang's server is started and asked.

Source: srt/server_args.py, srt/entrypoints/http_server.py and srt/managers/io_struct.py of releases
0.5.2 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.served.server import Answer, Post, ServerLaunch, flag_value

_BACKEND_FLAG = "--attention-backend"
# This module starts the server too, after it has replaced the values of dummy weights.
_DUMMY_SERVER = "benchmarks.served.sglang_dummy"
_SERVER = "sglang.launch_server"
_BACKEND_FLAG = "--attention-backend"


class SGLangServer:
    """See `benchmarks.served.server.Server`."""

    ready_path = "/health_generate"  # /health answers before the first kernels have run
    # sglang takes a share of what is free when it starts: 0.72 of the other 0.58 is 0.42 again.
    # The rest of 0.16 is for the CUDA graphs and activations of both.
    memory_shares = (0.42, 0.72)

    def command(self, launch: ServerLaunch) -> list[str]:
        words = [_DUMMY_SERVER if launch.dummy else _SERVER, "--model-path", launch.model]
        words += ["--host", "127.0.0.1", "--port", str(launch.port), "--tp-size", str(launch.tp)]
        # A prompt that was seen must be computed anew.
        words += ["--disable-radix-cache"]
        if launch.dummy:
            words += ["--load-format", "dummy"]
        if launch.memory is not None:
            words += ["--mem-fraction-static", f"{launch.memory:g}"]
        return [*words, *launch.args]

    def stream(self, prompt: Sequence[int], tokens: int) -> Post:
        return Post("/generate", {**_body(prompt, tokens), "stream": True})

    def streamed(self, event: Mapping[str, Any]) -> int:
        return int(event["meta_info"]["completion_tokens"])

    def greedy(self, prompt: Sequence[int], tokens: int) -> Post:
        return Post(
            "/generate",
            {**_body(prompt, tokens), "return_logprob": True, "logprob_start_len": 0},
        )

    def answer(self, body: Mapping[str, Any]) -> Answer:
        told = body["meta_info"]
        answered = told["output_token_logprobs"]
        return Answer(
            tuple(float(row[0]) for row in told["input_token_logprobs"][1:]),
            tuple(int(row[1]) for row in answered),
            tuple(float(row[0]) for row in answered),
        )

    def backend(self, args: Sequence[str], phase: str) -> str | None:
        return flag_value(args, f"--{phase}-attention-backend") or flag_value(args, _BACKEND_FLAG)

    def backend_flags(self, prefill: str, decode: str) -> str:
        if prefill == decode:
            return f"{_BACKEND_FLAG} {prefill}"
        return f"--prefill-attention-backend {prefill} --decode-attention-backend {decode}"


open_server = SGLangServer


def _body(prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": list(prompt), "sampling_params": sampling}
