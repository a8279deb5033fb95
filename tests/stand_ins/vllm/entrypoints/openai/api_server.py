"""The command line, paths and answers of vLLM's server."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from served_engine import chosen, log_files, logprob, main


def routes(args: argparse.Namespace) -> Any:
    folder = os.environ.get("VLLM_TUNED_CONFIG_FOLDER")
    if folder:
        log_files(Path(folder), "Using configuration from %s for MoE layer.", args)

    def answer(path: str, body: dict[str, Any]) -> Any:
        assert path == "/v1/completions" and body["model"] == args.served_model_name
        count = body["max_tokens"] - args.short_answers
        prompt = body["prompt"]
        assert body["ignore_eos"] and body["temperature"] == 0
        if body.get("stream"):
            assert body["stream_options"]["continuous_usage_stats"]
            return stream(count)
        assert body["prompt_logprobs"] == 0 and body["return_tokens_as_token_ids"]
        given = [
            {str(token): {"logprob": logprob(prompt[:at], args), "rank": 1}} if at else None
            for at, token in enumerate(prompt)
        ]
        tokens = chosen(prompt, count)
        probabilities = [logprob([*prompt, at], args) for at, _ in enumerate(tokens)]
        names = [f"token_id:{token}" for token in tokens]
        told = {"tokens": names, "token_logprobs": probabilities}
        return {"choices": [{"text": "", "prompt_logprobs": given, "logprobs": told}]}

    return answer


def stream(count: int) -> Iterator[dict[str, Any]]:
    for done in range(1, count + 1):
        yield {"choices": [{"text": "t"}], "usage": {"completion_tokens": done}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--tensor-parallel-size", type=int)
    parser.add_argument("--gpu-memory-utilization", type=float)
    parser.add_argument("--no-enable-prefix-caching", action="store_true", required=True)
    main(parser, routes)
