"""Whose code a traceback ends in, who called it, and what the server was doing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from tuner.diagnose.findings import Frame
from tuner.engines.engine import engine_names
from tuner.engines.logs.served import ENGINES
from tuner.engines.logs.settings import words_of
from tuner.shell import command_line

_INSTALLED = re.compile(r"(?:site|dist)-packages/(\w+)")
# Plugins and forks whose sources stand in a folder of their own, not among installed packages.
_CHECKOUT = re.compile(
    r"/((?:vllm|sglang)_\w+(?!.*/(?:vllm|sglang)/)|lmdeploy|tensorrt_llm|ktransformers|gpt_oss|exllamav3)/"
)
# A project's own checkout: its name, and the package of that name in its folder src.
_SOURCE = re.compile(r"/([A-Za-z]\w*)(?:-\w+)*/src/(\1(?:_\w+)*)/")
# The folder of a package in a path that is cut before it, as people paste it.
_CUT = re.compile(
    r"(?!(?:python|src|csrc|tests?|examples?|scripts?|tools|benchmarks?|app|workspace)/)([A-Za-z_]\w*)/"
)
# Code that torch.compile wrote.
_GENERATED = re.compile(r"/torchinductor_\w+/|/torch_compile_cache/|/inductor_cache/")
_FEATURE = re.compile(r"--(?:enable|speculative)-")
# Steps of a server's life, by functions that both engines keep; the innermost frame decides.
_STEPS = (
    (r"load_model|load_weights|process_weights_after_loading", "loading the weights"),
    (r"determine_available_memory|profile_run", "measuring its memory, before the KV cache"),
    (r"initialize_kv_cache\w*|init_memory_pool", "making the KV cache"),
    (r"capture_model|\w*cuda_graphs?\w*capture|capture_one_batch_size", "capturing CUDA graphs"),
    (r"warmup\w*|kernel_warmup|compile_or_warm_up_model", "warming up"),
    # A worker's own loop is none: vLLM sends it what belongs to the start, too.
    (r"event_loop(_\w+)?|run_busy_loop|process_batch_result\w*", "serving requests"),
)


def package_of(frame: Frame) -> str:
    """The package that a frame's file belongs to; "" if its path does not show it."""
    path = frame.path.replace("\\", "/")
    if _GENERATED.search(path):
        return ""
    if installed := _INSTALLED.findall(path):
        return str(installed[-1])
    if checkout := _CHECKOUT.findall(path):
        return str(checkout[-1])
    if source := _SOURCE.search(path):  # /home/me/prime-rl/src/prime_rl/inference/vllm/sampler.py
        return source[2]
    if "/plugin/" in path:  # /app/atom/plugin/sglang/models.py
        return ""
    if engine := next((name for name in engine_names() if f"/{name}/" in f"/{path}"), ""):
        return engine
    cut = _CUT.match(path)
    return cut[1] if cut else ""


def of_engine(frame: Frame) -> bool:
    """Whether a frame is in sglang or vLLM, and not in a plugin, a fork's package or a script."""
    return package_of(frame) in engine_names()


def caller_of(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of sglang or vLLM."""
    return next((frame for frame in reversed(frames) if of_engine(frame)), None)


def whose(frame: Frame, frames: Sequence[Frame], error: str = "") -> list[str]:
    """Whose code the innermost frame is if it is not the engine's, and where that called it."""
    package = package_of(frame)
    if package in ("tuner", *ENGINES):
        return []
    told = []
    if package == "ray":
        told.append("Ray passes on here what another process raised: look for that one's lines.")
    elif package:  # else Python's own library, a template or a script
        told.append(
            f"That is code of the package {package}, and not of sglang or vLLM: look for this "
            "error in the reports of problems of its makers, too."
        )
    if caller := caller_of(frames):
        engine = ENGINES[package_of(caller)]
        told.append(f"{engine} called it at {caller.path}, line {caller.line}, {caller.function}.")
    return [*told, *_refused(package, frames, error)]


def _refused(package: str, frames: Sequence[Frame], error: str) -> Iterator[str]:
    """Which package called the one that raised, if that refuses what it was given."""
    other = next((f for f in reversed(frames) if package_of(f) not in ("", package)), None)
    by = package_of(other) if other else ""
    if not other or not package or by == "torch" or not error.startswith(("Type", "Value")):
        return
    if by not in ENGINES:
        yield f"{by} called it at {other.path}, line {other.line}, {other.function}."
    elif error.startswith("Value"):
        return  # most often of the server's own settings
    by = ENGINES.get(by, by)
    yield (
        f"If {package} refuses what {by} gives it, most often their releases do not fit each "
        f"other: install the release of {package} that this release of {by} asks for, or another "
        f"one of {by}."
    )
    yield f"$ pip list | {command_line('grep', '-iE', f'{package}|{by}')}; pip check"


def step_of(frames: Sequence[Frame]) -> str:
    """What the server was doing, as a sentence; "" if no frame shows it."""
    for frame in reversed(frames):
        for functions, words in _STEPS:
            if re.fullmatch(functions, frame.function):
                return f"The server was {words} ({frame.function})."
    return ""


def chosen(settings: Mapping[str, str]) -> Iterator[str]:
    """The backends and features that the text chooses: most people run the engine's own choice."""
    chosen = (one for one in settings.items() if "backend" in one[0] or _FEATURE.match(one[0]))
    if words := [word for one in chosen for word in words_of(*one)]:
        yield f"The text sets {shlex.join(words)}: see whether it comes without, too."
