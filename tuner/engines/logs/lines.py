"""Read the lines of logs of any size, without the marks of terminals, mails and pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

BLANKS = b" \t\n\r\v\f"
_BLOCK = 1 << 20  # bytes
_LONGEST = 16_384  # bytes of a line; the rest of a longer line counts as wrapped
# Escape sequences, and how programs and pages that take the escape out spell them.
_ESCAPES = (b"\x1b", b"ESC", b"^[", rb"\x1b", rb"\u001b", rb"\033", b"#033")
_COLOURS = re.compile(
    rb"(?:%s)\[[\d;]*m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07"
    % b"|".join(map(re.escape, _ESCAPES))
)
_CHARACTERS = {b"quot": b'"', b"#39": b"'", b"#x27": b"'", b"lt": b"<", b"gt": b">", b"amp": b"&"}
# Names of config files in the address of a page.
_IN_ADDRESSES = {b"%3D": b"=", b"%2C": b",", b"%5B": b"[", b"%5D": b"]", b"%20": b" "}
_ESCAPED = re.compile(rb"&(quot|#39|#x27|lt|gt|amp);")
# Marks of a quotation, and the text of docker compose before a service's line.
_QUOTED = re.compile(
    rb"^(?:[ \t]*(?:>[ \t]?)+|[ \t]*[\w.-]{0,60}[ \t]*\|[ \t](?=\S)"
    rb"|[\w.-]{1,60}[ \t]*\|[ \t](?=[ \t]+\S))",
    re.MULTILINE,
)
# A command that sglang prints as an example, of a model that it does not serve.
_EXAMPLE = re.compile(rb"`python3 -m sglang\.compile_deep_gemm --model deepseek-ai/[^`\n]{0,99}`")
# Markdown's form of a word that looks like an address: [a.json](http://a.json/).
_LINKED = re.compile(
    rb"\[((?:https?://)?([^\[\]()\s/][^\[\]()\s]{0,400}?)/?)\]\((?:https?://)?\2/?\)"
)
# A line that begins so does not continue the line before.
BEGINS = re.compile(
    r"\s*(?:\[?\d{4}[-/]\d\d|\(\w+|\[rank|\[TP|INFO\b|WARNING\b|ERROR\b|Traceback|File \")"
)
_RANK = re.compile(
    r"\[[^\]]*?\b((?:DP\d+ )?(?:PP\d+ )?TP\d+(?: EP\d+)?)\]"
    r"|\((\w*Worker\w*(?: \w+)? pid=\d+[^)]*)\)"
)


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield blocks that end at the end of a line, or at the size of a block."""
    rest = b""
    while block := stream.read(_BLOCK):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if not newline and len(rest) >= _BLOCK:
            whole, rest = rest, b""
        if whole:
            yield whole
    if rest:
        yield rest


def lines_of(block: bytes) -> list[bytes]:
    """Return the lines of a block, without colours, escapes of HTML, links and marks of
    quotations.
    """
    if any(escape + b"[" in block for escape in _ESCAPES):
        block = _COLOURS.sub(b"", block)
    if b"&" in block:
        block = _ESCAPED.sub(lambda match: _CHARACTERS[match[1]], block)
    if b"device_name%3D" in block:
        for code, character in _IN_ADDRESSES.items():
            block = block.replace(code, character)
    if b"compile_deep_gemm" in block:
        block = _EXAMPLE.sub(b"...", block)
    if b"](" in block:
        block = _LINKED.sub(rb"\1", block)
    if b"|" in block or b">" in block:
        block = _QUOTED.sub(b"", block)
    lines = block.replace(b"\r", b"\n").split(b"\n") if b"\r" in block else block.split(b"\n")
    if max(map(len, lines)) <= _LONGEST:
        return lines
    return [line[i : i + _LONGEST] for line in lines for i in range(0, max(1, len(line)), _LONGEST)]


def rank_of(line: str) -> tuple[str, ...]:
    """Return the rank that wrote a line, or nothing if the line does not name it."""
    return tuple(g for m in _RANK.finditer(line[:200]) for g in m.groups() if g)[:1]
