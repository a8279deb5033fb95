"""Describe a server from a log and the command line, for the commands that this program
suggests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.devices.table import Device, card_to_check, find_device, other_maker
from tuner.engines.engine import Engine, find_engine, published
from tuner.engines.logs.facts import Facts
from tuner.engines.logs.settings import as_words
from tuner.engines.settings import ServingFlags, read_flags
from tuner.errors import BadInput, BadProblem, UnknownDevice, UnknownEngine, UnknownModel
from tuner.models.fields import is_path
from tuner.models.table import find_preset
from tuner.problems.options import Option
from tuner.problems.registry import Family

# Flags that divide the experts among all ranks.
_SPREAD = {"--enable-expert-parallel", "--enable-ep-moe"}
_OF_WEIGHTS = {"fused_moe", "dense_gemm"}  # families whose problems have the weights' type
_VLLM_GEMM = re.compile(r"N=\d+,K=\d+,device_name=[^,]+,dtype=\w+,block_shape=\[\d+,\d+\]\.json")
_NAMED = 4  # GPUs that are listed by name
ENGINES = {"sglang": "sglang", "vllm": "vLLM"}  # by the name in paths, as texts name them


def unmade(name: str) -> str:
    """Return a sentence on a file that vLLM reads and this program does not make; ""
    for any other.
    """
    if not _VLLM_GEMM.fullmatch(name):
        return ""
    return (
        f"vLLM reads {name} for a quantised dense GEMM, from the folder of its package alone. This "
        "program neither makes nor checks it: vLLM's benchmarks/kernels/benchmark_w8a8_block_fp8.py"
        " makes it."
    )


@dataclass(frozen=True)
class Hints:
    """The facts about the server on the command line; empty if they are not given."""

    engine: str = ""  # "sglang" or "sglang==0.4.4"
    device: str = ""
    model: str = ""
    tp: int = 0


@dataclass(frozen=True)
class CompletedHints:
    """The hints, completed with the facts of the text."""

    hints: Hints
    facts: Facts

    @property
    def model(self) -> str:
        """Return the model's name, or the last part of its path on another machine."""
        return self.hints.model or self.facts.get("model").rstrip("/")

    def target(self) -> str:
        """Return the model as commands take it: a preset, or the path on the command line.

        Return "" if there is neither, so that its config.json is needed.
        """
        given = self.hints.model
        return given if given and is_path(given) else _preset(self.model)

    @property
    def tp(self) -> int:
        return self.hints.tp or int(self.facts.get("tp") or 0)

    @property
    def ep(self) -> int:
        """Return the expert-parallel size; 0 if the text does not say it."""
        spread = self.facts.settings.keys() & _SPREAD
        return int(self.facts.get("ep") or 0) or (self.tp if spread else 0)

    def flags(self, name: str) -> ServingFlags:
        """Return the changes that the text's flags make to a model's problems."""
        quantised = {"--quantization": said} if (said := self.facts.get("quantization")) else {}
        try:
            given = {**quantised, **self.facts.settings}
            return read_flags(name, given) if name in ENGINES else ServingFlags()
        except BadProblem:  # a flag's value is cut, or no number
            return ServingFlags()

    def shaped(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return the type of weights ("" if nothing says it), and the values of families' options
        for this server's ranks.
        """
        flags = self.flags(name)
        asked = flags.on(self.tp) if self.tp else dict(flags.options)
        if self.ep > 1:
            asked["ep"] = self.ep
        if "--enable-dp-attention" in self.facts.settings and self.facts.get("dp"):
            asked["dp"] = int(self.facts.get("dp"))
        dtype = flags.dtype.value if flags.dtype else ""
        if not dtype and not self.quantised() and (dtype := self.weights()):
            block = self.facts.get("block").replace(" ", "").replace(",", "x")
            asked |= {"block_shape": block} if block else {}
        return dtype, asked

    def serving(self, name: str, family: Family) -> list[str]:
        """Return the options by which a family's problems are for this server's ranks."""
        dtype, asked = self.shaped(name)
        words = ["--tp", str(self.tp)] if self.tp else []
        if dtype and family.name in _OF_WEIGHTS:
            words += ["--dtype", dtype]
        for option in family.shaping:
            if option.name in asked:
                words += _option(option, asked[option.name])
        return words

    def quantised(self) -> bool:
        """Say whether the text's model is a preset of quantised weights."""
        target = "" if self.hints.model else self.target()
        return bool(target) and find_preset(target).quantization != "none"

    def weights(self) -> str:
        """Return the only type of quantised weights that people's words name; else ""."""
        said = self.facts.get("weights").lower().replace(" ", "_").partition("_")[0]
        others = self.facts.others.get("weights")
        if others and not others.value.lower().startswith(said):
            return ""
        return f"{said}_w8a8" if said in ("fp8", "int8") else ""

    def engine_name(self) -> str:
        """Return the engine: sglang, vllm, or "" if neither the hints nor the text tell."""
        if self.hints.engine:
            return self.hints.engine.partition("==")[0].strip().lower()
        return self.facts.engine

    def version(self, name: str) -> str:
        """Return the version of that engine, "" if it is not known."""
        if self.hints.engine:
            return self.hints.engine.partition("==")[2].strip()
        return self.facts.get("version") if self.facts.engine in ("", name) else ""

    def spec(self, name: str) -> str:
        """Return the engine as commands name it: sglang==0.5.16, or vllm without a
        known version.
        """
        version = self.version(name)
        version = version if self.hints.engine else published(name, version)
        return f"{name}=={version}" if name and version else name

    def engine(self, name: str) -> Engine | None:
        """Return the engine on this machine, in the log's version; None if it is not here."""
        try:
            return find_engine(self.spec(name))
        except UnknownEngine:
            return None

    def device(self, name: str = "") -> Device | None:
        """Return the GPU of the command line, else of that name or of the log, if it is known."""
        try:
            return find_device(self.hints.device or name or self.facts.get("device"))
        except UnknownDevice:
            if self.hints.device:
                raise
            return None

    def unsupported(self, name: str = "") -> str:
        """Return a sentence on the named or the text's GPU, if no command takes it; else ""."""
        found = None if self.hints.device else other_maker(name or self.facts.get("device"))
        return f"{found[1]}." if found else ""

    def too_old(self) -> str:
        """Return a sentence on the text's GPU, if it is too old for tuning; "" if not."""
        shown = "" if self.hints.device else self.facts.get("device")
        return no_figures(shown) if shown and "is too old" in refused(shown) else ""

    def options(
        self, name: str, device: Device | None = None, seen: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return the options by which a command works for this server, as far as they are known.

        `seen`: settings that messages show, besides the settings of its command.
        """
        device = device or self.device()
        words = ["--device", card_name(device)] if device else []
        words += ["--engine", self.spec(name)] if name else []
        given = as_words({**self.facts.settings, **(seen or {})}, name)
        return [*words, "--server-args", given] if given else words

    def missing(self, name: str, device: Device | None = None, *, model: bool = False) -> str:
        """Return a sentence on the facts that a command still needs; "" if none is missing.

        `model`: the command is for the text's model.
        """
        lacks = []
        if model and (unread := self.flags(name).unread):
            return f"{unread[0].upper()}{unread[1:]}."
        if not device and (other := self.unsupported()):
            return other
        if not (device or self.device()):
            shown, capability = self.facts.get("device"), self.facts.get("capability")
            if shown and not_tuned_for(shown):
                return no_figures(shown)
            known = f" ({_unknown(shown, capability)})" if shown or capability else ""
            names = [card.name for card in self.facts.words.cards.several()]
            if not known and len(names) > 1:
                known = f" (the text names {' and '.join(names[:_NAMED])})"
            lacks.append(f"--device, the GPU as nvidia-smi -L names it{known}")
        if model and not self.model:
            lacks.append("the model, by its name or its config.json")
        if model and not self.tp:
            lacks.append("--tp, the tensor-parallel size of the server's command")
        if not name:
            lacks.append("--engine sglang or --engine vllm")
        return f"The text does not say, and the command needs: {'; '.join(lacks)}." if lacks else ""


def _option(option: Option, value: Any) -> list[str]:  # noqa: ANN401  # of the option's own type
    yes, _, no = option.flag.partition("/")
    if isinstance(value, bool):
        return [yes if value else no]
    return [yes, str(value)]


def _unknown(shown: str, capability: str) -> str:
    """Say why commands cannot take a GPU that the text shows, and which GPU they can take."""
    add = "docs/models.md says how to add a GPU"
    if shown and (reason := refused(shown)):
        return reason  # it says which name to use instead
    try:
        same = card_to_check(capability)
    except UnknownDevice:
        return f"the text shows {shown or capability}: {add}"
    return (
        f"the text shows {shown or 'a GPU'} of compute capability {capability}: `tuner check` of "
        f"config files takes --device {same.name}, and {add}"
    )


def refused(name: str) -> str:
    """Say why the table of GPUs refuses a card; "" for any other."""
    try:
        find_device(name)
    except UnknownDevice as error:
        return "" if str(error).startswith("unknown device") else str(error)
    return ""


def not_tuned_for(name: str) -> str:
    """Say why nothing can be tuned for a card or for another card in its place; "" for
    any other.
    """
    reason = refused(name)
    return "" if "name the" in reason else reason


def is_nameless(name: str) -> bool:
    """Say whether the text in a GPU's place is no name: empty, or an object of Python."""
    return name in ("", "None") or bool(re.search(r"[<>]|\(\)", name))


def no_figures(name: str) -> str:
    """Return a sentence on a GPU that the table of GPUs lacks or refuses; "" for any other."""
    if is_nameless(name):
        return "The engine found no name for this card, so no file can match until it does."
    try:
        find_device(name)
    except UnknownDevice:
        why = refused(name) or "docs/models.md says how to add a GPU"
        return f"This tuner has no figures for {name}: {why}."
    return ""


def card_name(device: Device) -> str:
    """Return the GPU as commands name it."""
    names = (device.name.removeprefix("NVIDIA_"), *device.aliases)
    return min((name for name in names if " " not in name), key=len)


def _preset(name: str) -> str:
    """Return the preset of a model's name or path of another machine; "" if there is none."""
    try:
        return find_preset(name.rpartition("/")[2]).name if name else ""
    except UnknownModel:
        return ""


def check_hints(hints: Hints) -> None:
    """Raise BadInput for a device or an engine that does not exist."""
    if hints.device:
        find_device(hints.device)
    name = hints.engine.partition("==")[0].strip().lower()
    if name and name not in ENGINES:
        raise BadInput(f"unknown engine {name!r}; write sglang or vllm, or sglang==VERSION")
    if hints.tp < 0:
        raise BadInput(f"tensor-parallel sizes start at 1, not tp={hints.tp}")
