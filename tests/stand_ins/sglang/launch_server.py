"""The command line, paths and answers of sglang's server."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from served_engine import chosen, log_files, logprob, main


def routes(args: argparse.Namespace) -> Any:
    folder = os.environ.get("SGLANG_MOE_CONFIG_DIR")
    if folder:
        list(Path(folder, "configs").iterdir())  # the loader does it, and stops without one
        log_files(Path(folder, "configs"), "Using MoE kernel config from %s.", args)

    def answer(path: str, body: dict[str, Any]) -> Any:
        assert path == "/generate"
        sampling, prompt = body["sampling_params"], body["input_ids"]
        count = sampling["max_new_tokens"] - args.short_answers
        assert sampling["ignore_eos"] and sampling["temperature"] == 0
        tokens = chosen(prompt, count)
        if body.get("stream"):
            return stream(count)
        assert body["return_logprob"] and body["logprob_start_len"] == 0
        given = [[logprob(prompt[:at], args), token, None] for at, token in enumerate(prompt)]
        given[0][0] = None
        answered = [[logprob([*prompt, at], args), one, None] for at, one in enumerate(tokens)]
        told = {"input_token_logprobs": given, "output_token_logprobs": answered}
        return {"text": "", "meta_info": {**told, "completion_tokens": count}}

    return answer


def stream(count: int) -> Iterator[dict[str, Any]]:
    for done in range(1, count + 1):
        yield {"text": "t" * done, "meta_info": {"completion_tokens": done}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--tp-size", type=int)
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--disable-radix-cache", action="store_true", required=True)
    main(parser, routes)
