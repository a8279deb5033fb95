"""What the advice gains over sglang's own choices, on a machine with one GPU and sglang 0.5.16.

    python -m benchmarks.served_gpu OUT [--device H100] [--cases qwen3-30b-a3b,qwen3-32b-fp8]
                                        [--rounds 7] [--loads 1x1024+128,...]
                                        [--tune "CONFIG --effort quick"]... [--database URL]
                                        [--shelf] [--args "..."] [--dry-run]

For each case it tunes the model, or what --tune names, exports the winners, and runs
benchmarks/served with dummy weights. No flag chooses a backend, and what the servers' logs say
of that is printed. Where the advice is to leave everything, there is nothing to compare. Attention
is tuned for the lengths of the loads: OUT/CASE/workload.toml has them. OUT/CASE has the files, logs
and report.json, and OUT/served.json all reports.

`--database` names a store that has the winners: then nothing is tuned. Neither is with `--shelf`,
which exports the files that come with this program. `--args` are further words
for all servers. An interrupt ends the rounds, and the report is of those that were measured.
benchmarks/sglang_stand_ins helps where the machine cannot install all of sglang.

A model that is called `-rank` is what one rank of it computes at TP 8: an eighth of the heads, of
each expert and of the vocabulary, without the all-reduces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.served.loads import Load, parse_loads

MODELS = Path(__file__).parent / "served_models"
WORKLOAD = "workload.toml"
LOADS = ",".join(
    f"{sequences}x{prompt}+{answer}"
    for prompt, answer in ((1024, 128), (8192, 64), (32768, 64))
    for sequences in (1, 16, 64)
    if sequences * prompt <= 16 * 32768  # what the KV cache of two servers holds
)
CHUNK = 8192  # new tokens of a prefill step at most: sglang's default on cards of 35 to 160 GB
LAYERS = {
    **{"qwen3-30b-a3b": 12, "deepseek-r1-rank": 12, "qwen3-32b-fp8": 16},
    **{"nemotron-3-nano": 14, "qwen3-next": 8},
    **{"kimi-k2-rank": 6, "deepseek-v2-rank": 8, "qwen3-coder-480b-rank": 6},
    "ernie-4.5-300b-rank": 6,
}
# What sglang's log says of the backends that it chose, or fell back to.
_CHOSEN = re.compile(
    r"\b(?:prefill_|decode_)?(?:attention|moe_runner|fp8_gemm_runner|sampling)_backend='?\w+'?"
    r"|Attention backend not specified[^\n]*|[^\n]*DeepGEMM[^\n]*"
    r"|[^\n]*(?:[Ff]all(?:s|ing)? ?back|Rollback)[^\n]*|[^\n]*MoE kernel config[^\n]*"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="H100")
    parser.add_argument("--cases", default=",".join(LAYERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--loads", default=LOADS)
    parser.add_argument("--args", default="", help="further words for the servers")
    parser.add_argument("--tune", action="append", help="words for `tuner tune`; default: --all")
    parser.add_argument("--database", help="a store that has the winners; default: they are tuned")
    parser.add_argument("--shelf", action="store_true", help="tune nothing: the shelf has files")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    reports: dict[str, Any] = {}
    for name in args.cases.split(","):
        folder = args.out.resolve() / name
        if not args.dry_run:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / WORKLOAD).write_text(workload(parse_loads(args.loads)))
        for words in commands(name, folder, args):
            print(f"$ tuner {shlex.join(words)}", flush=True)
            if args.dry_run:
                continue
            if words[0] == "compare" and not (folder / "configs/provenance").is_dir():
                print("the advice is to leave everything, so there is nothing to compare")
                continue
            tuner(words, folder, args.database)
        for log in sorted((folder / "proof").glob("*-1.log")):
            print(f"{name}, {log.stem}:", *chosen(log.read_text(errors="replace")), sep="\n  ")
        if (folder / "proof/report.json").is_file():
            reports[name] = json.loads((folder / "proof/report.json").read_text())
            (args.out / "served.json").write_text(json.dumps(reports, indent=1) + "\n")
    verdicts = [gain["verdict"] for report in reports.values() for gain in report["gains"]]
    faster, slower = (verdicts.count(word) for word in ("faster", "slower"))
    print(f"{len(verdicts)} cells, {faster} faster, {slower} slower")


def commands(name: str, folder: Path, args: argparse.Namespace) -> list[list[str]]:
    """The commands of a case, without `tuner`."""
    config, out = str(MODELS / f"{name}.json"), str(folder / "configs")
    device = ["--device", args.device]
    tuned = [shlex.split(words) for words in args.tune or ()] or [[config, "--all"]]
    compare = ["compare", config, *device, "--dummy", "--layers", str(LAYERS[name])]
    compare += ["--out", out, f"--args={args.args}", "--loads", args.loads]
    compare += ["--rounds", str(args.rounds), "--report", str(folder / "proof")]
    lengths = ["--workload", str(folder / WORKLOAD)]
    return [
        *(
            ["tune", *words, *device, *(lengths if {"attention", "--all"} & {*words} else [])]
            for words in (() if args.database or args.shelf else tuned)
        ),
        [
            "export",
            *([config] if args.shelf else []),
            *device,
            "--out",
            out,
            f"--server-args={args.args}",
        ],
        compare,
    ]


def workload(loads: Sequence[Load]) -> str:
    """The batches of attention that the loads run, as `--workload` reads them."""
    sizes: dict[tuple[int, int, int], None] = {}
    for load in loads:
        sizes[load.sequences, 1, load.prompt + load.answer // 2] = None
        if load.prompt < CHUNK:  # the first prompt may run alone
            for together in (1, min(load.sequences, CHUNK // load.prompt)):
                sizes[together, load.prompt, 0] = None
            continue
        for cached in range(0, load.prompt - 1, CHUNK):
            sizes[1, min(CHUNK, load.prompt - cached), cached] = None
    return "".join(
        f"[[point]]\nbatch_size = {batch_size}\nnew_tokens = {new}\ncached_tokens = {cached}\n\n"
        for batch_size, new, cached in sizes
    )


def tuner(words: Sequence[str], folder: Path, database: str | None) -> None:
    """Run one command with a store of the case's own. A comparison that fails is a result too."""
    environ = {**os.environ, "TUNER_DATABASE_URL": database or f"sqlite:///{folder / 'tuner.db'}"}
    start = ["-c", "from tuner.cli import main; main()", *words]
    if words[0] == "compare":
        start = ["-m", "benchmarks.served", *words[1:]]
    command = [sys.executable, *start]
    process, code = subprocess.Popen(command, env=environ), None
    while code is None:
        # An interrupt is for the command, which writes what it measured.
        with contextlib.suppress(KeyboardInterrupt):
            code = process.wait()
    if code and not (words[0] == "compare" and (folder / "proof/report.json").is_file()):
        sys.exit(f"tuner {words[0]} failed with {code}")


def chosen(log: str) -> list[str]:
    """What a server's log says of backends, each once."""
    return list(dict.fromkeys(found.group().strip()[:200] for found in _CHOSEN.finditer(log)))


if __name__ == "__main__":
    main()
