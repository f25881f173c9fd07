"""The answer that a text gives: what its last box holds, or its marked last line. Plain scanning, no expressions."""

import re
from dataclasses import dataclass

from envhub.rewards.math_verify.policy import Policy

_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_HASHES = re.compile(r"^[ \t]*####(.*)$", re.MULTILINE)
_FILLING = re.compile(
    r"(?:[\s.,;$~&*}]|\\[\\,;:! ()\[\]]|\\q?quad(?![A-Za-z])|\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{)+"
)
_JOINING = frozenset({"or", "and", "either"})
_REDEFINES = re.compile(r"\\(?:def|newcommand|renewcommand|let|input|include)\b")
THINK_CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is the answer, where `several` a list of what different boxes hold; `problem` says why there is none to judge."""

    text: str = ""
    problem: str = ""
    several: bool = False


def extract(text: str, policy: Policy | None = None) -> Answer:
    r"""The final answer: the last `\boxed{…}` after the reasoning, else the last line `#### …`.

    Boxes that follow each other directly, or joined by "or", "and" or a comma, are one list. A box that is never closed is
    none. Takes time linear in the text.
    """
    policy = policy or Policy()
    reasoning, _, text = text.rpartition(THINK_CLOSE)
    if _REDEFINES.search(text):
        return Answer(problem="the text redefines commands or reads files")
    boxes = _boxes(text, unclosed=policy.unclosed_box)
    marked = [line.strip() for line in _HASHES.findall(text) if line.strip()]
    if not boxes and not marked and policy.box_in_reasoning:
        text = reasoning
        boxes = _boxes(text, unclosed=policy.unclosed_box)
    if not boxes:
        return Answer(marked[-1]) if marked else Answer(problem="there is no box")
    last = [boxes[-1]]
    for earlier in reversed(boxes[:-1]):
        between = text[earlier[1] : last[-1][0]]
        if not _JOINING.issuperset(_FILLING.sub(" ", between).lower().split()):
            break
        last.append(earlier)
    contents = list(dict.fromkeys(content.strip() for _, _, content in reversed(last)))
    if policy.differing_boxes == "last":
        contents = contents[-1:]
    if not all(contents):
        return Answer(problem="the box is empty")
    return Answer(", ".join(contents), several=len(contents) > 1)


def _boxes(text: str, *, unclosed: bool) -> list[tuple[int, int, str]]:
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
            if unclosed and text[match.end() :].strip():
                out.append((match.start(), end, text[match.end() :] + "}" * (depth - 1)))
            break
        out.append((match.start(), end, text[match.end() : end - 1]))
        at = end
    return out
