"""Read the log lines of the tuner's plugin (`tuner.engines.sglang.plugin`).

A rank logs which attention files it uses when its attention backend is built, and again when a
second backend (for a draft model) changes that. The last line of a rank counts. It logs each file
of a GEMM or of a chunked scan when the engine asks for it, and refused ones with the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.deploy.load_proof.messages import key_of, triton_of
from tuner.deploy.load_proof.proof import EVERY_KEY, GEMM, SCAN, FileLoad, LoadOutcome
from tuner.engines.logs.lines import rank_of

_LINE = re.compile(r"\btuner (attention|gemm|scan): (.*)")
# The start of the line that lists the used files.
_SUMMARY = re.compile(r"(?:extend|decode|prefill) \d|no file applies|inference is deterministic")
# Between the items of a line; a reason may end in advice.
_NEXT = re.compile(r"; (?!did you mean |the nearest )")
_FROM = r" from (?P<path>\S.*?\.json)(?P<how> \(predicted\))?"
_USED = re.compile(rf"\w+ \d+/\d+ \d+/\d+ .*?{_FROM}")
_USED_ALONE = {  # by family: the line of one file
    GEMM: re.compile(rf"\d+x\d+ \w+ \w+{_FROM}"),
    SCAN: re.compile(rf"chunked scan, .*?{_FROM}"),
}
# A launch that no file is for: the engine's draft model may have such layers.
_LEFT_ALONE = re.compile(r"\w+: (no choice for|left alone)\b.*")
_REFUSED = re.compile(r"refused (?P<path>\S.*?\.json): (?P<why>.*)")
# The start of a reason for which a good file is refused.
_ELSEWHERE = ("made for ", "sglang ")
_NO_LAUNCH = re.compile(r"(?P<kernel>_fwd\w+) \(.*?\): (?P<why>not with .*)")


@dataclass
class PluginLines:
    """Collects the plugin's lines."""

    _alone: list[FileLoad] = field(default_factory=list)
    _troubles: list[FileLoad] = field(default_factory=list)
    _said: dict[tuple[str, tuple[str, ...]], list[FileLoad]] = field(default_factory=dict)

    def read(self, texts: Sequence[str], where: str) -> None:
        """Take a line of a log, alone and with lines into which it may be wrapped; ignore it
        unless the plugin wrote it.
        """
        if _LINE.search(texts[0]) is None:
            return
        line = next((text for text in texts if _whole(text)), texts[0])
        match = _LINE.search(line)
        assert match is not None
        family, text = match.groups()
        source = _Source(family, rank_of(line), where)
        if family in _USED_ALONE:
            self._alone.append(_alone(text, source))
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
    """The family, the ranks and the place (FILE:LINE) of a log line."""

    family: str
    ranks: tuple[str, ...]
    where: str

    def load(
        self, outcome: LoadOutcome, *, path: str = "", key: str = "", reason: str = ""
    ) -> FileLoad:
        used = path if outcome is LoadOutcome.LOADED else ""
        wanted = (path,) if path else ()
        key = key or key_of(path) or EVERY_KEY
        lines = (self.where,)
        return FileLoad(
            *(self.family, key, outcome, wanted, used, triton_of(used), self.ranks, lines, reason)
        )


def _whole(line: str) -> bool:
    """Whether all of a line is of forms that the plugin writes, so that nothing is wrapped."""
    match = _LINE.search(line)
    if match is None:
        return False
    source = _Source(match[1], (), "")
    if match[1] in _USED_ALONE:
        items = [_alone(match[2], source)]
    elif _SUMMARY.match(match[2]):
        items = [_item(item, source) for item in _NEXT.split(match[2])]
    else:
        return _trouble(match[2], source) is not None
    return all(item.outcome is not LoadOutcome.FAILED for item in items)


def _trouble(text: str, source: _Source) -> FileLoad | None:
    """A failure that the plugin logs in a separate line, whatever files are used."""
    if refused := _REFUSED.fullmatch(text):  # not part of the line that lists the used files
        return source.load(LoadOutcome.MALFORMED, path=refused["path"], reason=refused["why"])
    if failed := _NO_LAUNCH.fullmatch(text):
        return source.load(LoadOutcome.FAILED, key=failed["kernel"], reason=failed["why"])
    if text == "nothing is applied":
        return source.load(LoadOutcome.FAILED, reason=text)
    return None


def _item(text: str, source: _Source) -> FileLoad:
    if used := _USED.fullmatch(text):
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
    """What a line says about the file of a GEMM or of a chunked scan."""
    if used := _USED_ALONE[source.family].fullmatch(text):
        how = "predicted" if used["how"] else ""
        return source.load(LoadOutcome.LOADED, path=used["path"], reason=how)
    if refused := _REFUSED.fullmatch(text):
        elsewhere = refused["why"].startswith(_ELSEWHERE)
        outcome = LoadOutcome.REFUSED if elsewhere else LoadOutcome.MALFORMED
        return source.load(outcome, path=refused["path"], reason=refused["why"])
    if text == "no file applies" or _LEFT_ALONE.fullmatch(text):
        return source.load(LoadOutcome.DEFAULT, reason=text)
    return source.load(LoadOutcome.FAILED, reason=text)
