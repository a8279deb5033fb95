"""Read the log lines in which engines and the tuner's plugin name the files that they loaded.

The engines' messages are from sglang 0.4.4 to 0.5.23 (`get_moe_configs`, the loaders for dense
GEMMs, the plugin registry) and from vLLM (`fused_moe.py`, `fp8_utils.py`).

With the plugin (`tuner.bindings.sglang.plugin`), a rank logs the attention files that it uses when
its attention backend is built, and again when a second backend (for a draft model) changes them.
The last line of a rank counts. A rank logs each file of a GEMM or of a chunked scan when the engine
asks for it, and refused files with the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from tuner.deploy.load_proof.deployed import name_of
from tuner.deploy.load_proof.proof import (
    ATTENTION,
    DENSE_GEMM,
    EVERY_FILE,
    FUSED_MOE,
    FileLoad,
    Hook,
    LoadOutcome,
    Override,
)
from tuner.engines.logs.lines import rank_of

_JSON = r"(?P<{}>\S.*?\.json)"


@dataclass(frozen=True)
class _Message:
    outcome: LoadOutcome
    family: str
    pattern: str


_WANTED = _JSON.format("wanted")
_USED = _JSON.format("used")
_GEMMS = r"W8A8 (?:Block FP8 kernel|Block INT8 kernel|channelwise FP8 GEMM)"
# The first match counts, so of messages with the same start the longer comes first.
_MESSAGES = (
    _Message(
        LoadOutcome.FALLBACK,
        FUSED_MOE,
        rf"Config file not found at {_WANTED}\. Fallback to triton version (?P<triton>\S+) and use "
        rf"MoE kernel config from {_USED}\.",
    ),
    _Message(
        LoadOutcome.REUSED, FUSED_MOE, rf"Down MoE config file not found at {_WANTED}; reusing"
    ),
    _Message(
        LoadOutcome.REUSED,
        FUSED_MOE,
        rf"Using MoE kernel config with down_moe=False\. .*Config file not found at {_WANTED}",
    ),
    _Message(LoadOutcome.LOADED, FUSED_MOE, rf"Using MoE kernel config from {_USED}\."),
    _Message(LoadOutcome.LOADED, FUSED_MOE, rf"Using configuration from {_USED} for MoE layer"),
    _Message(LoadOutcome.LOADED, DENSE_GEMM, rf"Using configuration from {_USED} for {_GEMMS}"),
    # vLLM lists every path that it looked at.
    _Message(
        LoadOutcome.DEFAULT,
        FUSED_MOE,
        r"Using default MoE (?:kernel )?config\. .*Config file not found at (?P<wanted>.+\.json)",
    ),
    _Message(
        LoadOutcome.DEFAULT,
        DENSE_GEMM,
        rf"Using default {_GEMMS} config\. .*Config file not found at (?P<wanted>.+\.json)",
    ),
    _Message(
        LoadOutcome.DETERMINISTIC,
        FUSED_MOE,
        r"Deterministic inference is enabled, using default MoE kernel config",
    ),
)
_BEGINNING = re.compile(
    r"Using\s*(?:default\s*)?(?:MoE|W8A8|configuration\s*from)|[Cc]onfig\s*file\s*not\s*found\s*at"
    r"|Deterministic\s*inference\s*is\s*enabled,"
)
_NAME = re.compile(r"[/\\][EN]=\d")
_OVERRIDE = re.compile(
    r"down_moe config BLOCK_SIZE_M=(\d{1,9}) does not match up config BLOCK_SIZE_M=(\d{1,9}) "
    r"at M=(\d{1,9})"
)
_HOOK = re.compile(r"Applied (\d{1,9}) hook\(s\) to (\S+) \(from: (.*)\)")
_HOOK_FAILED = re.compile(r"Failed to (?:apply hooks to|execute general plugin:|load plugin) (\S+)")
_PATH = re.compile(r"[^,'\"\s\[][^'\"]*?\.json")  # a path of a list of paths
_TRITON = re.compile(r"triton_(\d+(?:_\d+)+)")


def read_load(texts: Sequence[str], where: str) -> FileLoad | None:
    """Return the file that an engine's loader reports in a line; None for other lines.

    `texts` are the line alone, then with lines into which it may be wrapped.
    """
    if not _BEGINNING.search(texts[-1]):
        return None
    for wrapped, text in enumerate(texts):
        for message, pattern in _patterns():
            match = pattern.search(text)
            if match and match.start() < len(texts[0]) and not (wrapped and _of_several(match)):
                return _load(message, match, text, where)
    return None


def is_cut(line: str) -> bool:
    """Say whether a message about a config file begins in a line, with a part of the file's
    name.
    """
    begins = _BEGINNING.search(line)
    return begins is not None and _NAME.search(line, begins.end()) is not None


@cache
def _patterns() -> tuple[tuple[_Message, re.Pattern[str]], ...]:
    """Return the messages' patterns; a blank may be missing, because lines are wrapped there."""
    return tuple((one, re.compile(one.pattern.replace(" ", r"\s*"))) for one in _MESSAGES)


def _of_several(match: re.Match[str]) -> bool:
    """Say whether a path goes beyond its message, into the line of another message."""
    found = (match.groupdict().get(name) or "" for name in ("wanted", "used"))
    names = (name_of(path) for text in found for path in _PATH.findall(text))
    return any(" " in name.replace(", ", ",") for name in names)


def _load(message: _Message, match: re.Match[str], text: str, where: str) -> FileLoad:
    found = match.groupdict()
    used = found.get("used") or ""
    wanted = tuple(_PATH.findall(found.get("wanted") or used))
    name = name_of((wanted or ("",))[0]) or EVERY_FILE
    triton = found.get("triton") or triton_of(used)
    return FileLoad(
        message.family, name, message.outcome, wanted, used, triton, rank_of(text), (where,)
    )


def read_overrides(line: str) -> Iterator[Override]:
    for match in _OVERRIDE.finditer(line):
        down, up, batch_size = (int(g) for g in match.groups())
        yield Override(batch_size, down, up)


def read_hooks(line: str) -> Iterator[Hook]:
    applied = _HOOK.search(line)
    if applied:
        yield Hook(applied.group(2), int(applied.group(1)), applied.group(3))
    failed = _HOOK_FAILED.search(line)
    if failed:
        yield Hook(failed.group(1), 0, "")


def triton_of(path: str) -> str:
    """Return the Triton version in a file's path; empty if the path has none."""
    found = _TRITON.search(path)
    return found.group(1).replace("_", ".") if found else ""


# The word of the plugin's lines, and the families that it stands for.
GEMM, SCAN = "gemm", "scan"
_FAMILIES = {
    "attention": (ATTENTION,),
    GEMM: (DENSE_GEMM,),
    SCAN: ("chunk_scan", "gated_delta"),
}
_LINE = re.compile(rf"\btuner ({'|'.join(_FAMILIES)}): (.*)")
# The start of the line that lists the used files.
_SUMMARY = re.compile(r"(?:extend|decode|prefill) \d|no file applies|inference is deterministic")
# Between the items of a line; a reason may end in advice.
_NEXT = re.compile(r"; (?!did you mean |the nearest )")
_NEXT_ALONE = re.compile(r"; (?=refused |chunked scan, )")
_FROM = r" from (?P<path>\S.*?\.json)(?P<how> \(predicted\))?"
_USED_ATTENTION = re.compile(rf"\w+ \d+/\d+ \d+/\d+ .*?{_FROM}")
_USED_ALONE = {  # by word: the line of a file
    GEMM: re.compile(rf"\d+x\d+ \w+ \w+{_FROM}"),
    SCAN: re.compile(rf"chunked scan, .*?{_FROM}"),
}
# A launch that no file is for: the engine's draft model may have such layers.
_LEFT_ALONE = re.compile(r"\w+: (no choice for|left alone)\b.*")
_REFUSED = re.compile(r"refused (?P<path>\S.*?\.json): (?P<why>.*)")
_MORE = re.compile(r"refused \d+ more files")  # than a line names
# The start of a reason for which a good file is refused.
_ELSEWHERE = ("made for ", "sglang ", "inference is deterministic")
_NO_LAUNCH = re.compile(r"(?P<kernel>_fwd\w+) \(.*?\): (?P<why>not with .*)")


@dataclass
class PluginLines:
    """Collects the plugin's lines."""

    _alone: list[FileLoad] = field(default_factory=list)
    _troubles: list[FileLoad] = field(default_factory=list)
    _said: dict[tuple[str, tuple[str, ...]], list[FileLoad]] = field(default_factory=dict)

    def read(self, texts: Sequence[str], where: str) -> None:
        """Take a line of a log, alone and with lines into which it may be wrapped; ignore it unless
        the plugin wrote it.
        """
        if _LINE.search(texts[0]) is None:
            return
        line = next((text for text in texts if _whole(text)), texts[0])
        match = _LINE.search(line)
        assert match is not None
        word, text = match.groups()
        source = _Source(word, rank_of(line), where)
        if word in _USED_ALONE:
            self._alone += [_alone(item, source) for item in _NEXT_ALONE.split(text)]
        elif trouble := _trouble(text, source):
            self._troubles.append(trouble)
        elif _SUMMARY.match(text):
            launch = where.rpartition(":")[0], source.ranks
            self._said[launch] = [_item(item, source) for item in _NEXT.split(text)]

    def loads(self) -> Iterator[FileLoad]:
        for said in self._said.values():
            yield from said
        yield from self._troubles
        yield from self._alone


@dataclass(frozen=True)
class _Source:
    """The word, the ranks and the place (FILE:LINE) of a log line."""

    word: str
    ranks: tuple[str, ...]
    where: str

    def load(
        self, outcome: LoadOutcome, *, path: str = "", name: str = "", reason: str = ""
    ) -> FileLoad:
        used = path if outcome is LoadOutcome.LOADED else ""
        wanted = (path,) if path else ()
        name = name or name_of(path) or EVERY_FILE
        families = _FAMILIES[self.word]
        named = [family for family in families if family == name.partition(",")[0]]
        return FileLoad(
            " and ".join(named or families),
            *(name, outcome, wanted, used, triton_of(used), self.ranks, (self.where,), reason),
            by_plugin=True,
        )


def _whole(line: str) -> bool:
    """Say whether the whole line has forms that the plugin writes, so that nothing is wrapped."""
    match = _LINE.search(line)
    if match is None:
        return False
    source = _Source(match[1], (), "")
    if match[1] in _USED_ALONE:
        items = [_alone(item, source) for item in _NEXT_ALONE.split(match[2])]
    elif _SUMMARY.match(match[2]):
        items = [_item(item, source) for item in _NEXT.split(match[2])]
    else:
        return _trouble(match[2], source) is not None
    return all(item.outcome is not LoadOutcome.FAILED for item in items)


def _trouble(text: str, source: _Source) -> FileLoad | None:
    """Return a failure that the plugin logs in a separate line, whatever files are used."""
    if refused := _REFUSED.fullmatch(text):  # not part of the line that lists the used files
        return source.load(LoadOutcome.MALFORMED, path=refused["path"], reason=refused["why"])
    if failed := _NO_LAUNCH.fullmatch(text):
        return source.load(LoadOutcome.FAILED, name=failed["kernel"], reason=failed["why"])
    if text == "nothing is applied":
        return source.load(LoadOutcome.FAILED, reason=text)
    return None


def _item(text: str, source: _Source) -> FileLoad:
    if _MORE.fullmatch(text):
        return source.load(LoadOutcome.REFUSED, reason=text)
    if used := _USED_ATTENTION.fullmatch(text):
        how = "predicted" if used["how"] else ""
        return source.load(LoadOutcome.LOADED, path=used["path"], reason=how)
    if refused := _REFUSED.fullmatch(text):
        return source.load(LoadOutcome.REFUSED, path=refused["path"], reason=refused["why"])
    if text == "no file applies":
        return source.load(LoadOutcome.DEFAULT, reason=text)
    if text.startswith("inference is deterministic"):
        return source.load(LoadOutcome.DETERMINISTIC)
    return source.load(LoadOutcome.FAILED, reason=text)


def _alone(text: str, source: _Source) -> FileLoad:
    """Return the outcome in a line about the file of a GEMM or of a chunked scan."""
    if _MORE.fullmatch(text):
        return source.load(LoadOutcome.REFUSED, reason=text)
    if used := _USED_ALONE[source.word].fullmatch(text):
        how = "predicted" if used["how"] else ""
        return source.load(LoadOutcome.LOADED, path=used["path"], reason=how)
    if refused := _REFUSED.fullmatch(text):
        elsewhere = refused["why"].startswith(_ELSEWHERE)
        outcome = LoadOutcome.REFUSED if elsewhere else LoadOutcome.MALFORMED
        return source.load(outcome, path=refused["path"], reason=refused["why"])
    if text == "no file applies" or _LEFT_ALONE.fullmatch(text):
        return source.load(LoadOutcome.DEFAULT, reason=text)
    return source.load(LoadOutcome.FAILED, reason=text)
