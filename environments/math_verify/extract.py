"""The answer that a text gives: what its last box holds, or its marked last line. Plain scanning, no expressions."""

import re
from dataclasses import dataclass

_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_HASHES = re.compile(r"^[ \t]*####[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_JOINED = re.compile(r"[\s.,;$]*(?:or|and|either)?[\s.,;$]*", re.IGNORECASE)
_REDEFINES = re.compile(r"\\(?:def|newcommand|renewcommand|let|input|include)\b")
THINK_CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is the answer; `problem` says why there is none that could be judged."""

    text: str = ""
    problem: str = ""


def extract(text: str) -> Answer:
    r"""The final answer: the last `\boxed{…}` after the reasoning, else the last line `#### …`.

    Boxes that follow each other directly, or joined by "or" or "and", are one list; different ones are then no single
    answer. A box that is never closed is none.
    """
    text = text.rpartition(THINK_CLOSE)[2]
    if _REDEFINES.search(text):
        return Answer(problem="the text redefines commands or reads files")
    boxes = _boxes(text)
    if not boxes:
        marked = _HASHES.findall(text)
        return Answer(marked[-1]) if marked else Answer(problem="there is no box")
    last = [boxes[-1]]
    for earlier in reversed(boxes[:-1]):
        if _JOINED.fullmatch(text[earlier[1] : last[0][0]]) is None:
            break
        last.insert(0, earlier)
    contents = {content.strip() for _, _, content in last}
    if len(contents) > 1:
        return Answer(problem="several boxes with different answers")
    content = contents.pop()
    return Answer(content) if content else Answer(problem="the box is empty")


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of every closed outermost box, in order."""
    out: list[tuple[int, int, str]] = []
    at = 0
    while (match := _BOX.search(text, at)) is not None:
        depth, end = 1, match.end()
        while end < len(text) and depth:
            char = text[end]
            if char == "\\":
                end += 1
            elif char == "{":
                depth += 1
            elif char == "}":
                depth -= 1
            end += 1
        if depth:
            break
        out.append((match.start(), end, text[match.end() : end - 1]))
        at = end
    return out
