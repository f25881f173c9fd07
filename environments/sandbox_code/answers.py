"""Find the submission in the text of an answer, and see whether it defines the function that was asked for."""

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator

_OPENING = re.compile(r"(.*?)(`{3,}|~{3,})[ \t]*([\w+-]*)(.*)")
_CLOSING = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*")
_PYTHON = ("", "python", "py", "python3")
_TAGS = {
    "python": ("python", "py", "python3"),
    "javascript": ("javascript", "js", "node"),
    "bash": ("bash", "sh", "shell"),
    "c": ("c",),
    "cpp": ("cpp", "c++", "cc", "cxx"),
}
_CLOSINGS_TRIED = 16


def submission(text: str, entry: str) -> str:
    """The code of an answer: the last fenced block that defines the function, else the last block, else the whole text.

    Line ends are made plain, and byte order marks are left out. A line inside a block that looks like its end is none
    where the code is Python only if it goes on.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    whole = _cleaned(text)
    tree = _parsed(whole)
    if tree is not None and _binds(tree, entry):
        return whole
    blocks = list(_blocks(text))
    defining = [body for body in blocks if defines(body, entry)]
    return (defining or blocks or [whole])[-1]


def program(text: str, language: str) -> str:
    """The program of an answer: its last fenced block in the language, else its last block, else the whole text."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks = list(_fenced(text))
    named = [body for tag, body in blocks if tag in _TAGS[language]]
    return (named or [body for _, body in blocks] or [_cleaned(text)])[-1]


def _fenced(text: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks: what each says it is, and its body; the last need not be closed."""
    lines, at = text.split("\n"), 0
    while at < len(lines):
        opening = _OPENING.fullmatch(lines[at])
        at += 1
        if opening is not None and not opening[1].strip() and "`" not in opening[4]:
            end = next(_ends(lines, at, opening[2]))
            yield opening[3].lower(), _cleaned("\n".join(lines[at:end]))
            at = end + 1


def defines(source: str, entry: str) -> bool:
    """Whether the source binds the name, or a method of that name of a class `Solution`, where a caller can find it.

    Source that is no Python defines what it seems to.
    """
    tree = _parsed(source)
    if tree is not None:
        return _binds(tree, entry)
    name = re.escape(entry)
    return (
        re.search(rf"^[ \t]*(async[ \t]+def|def|class)[ \t]+{name}\b|^{name}[ \t]*=", source, re.MULTILINE) is not None
    )


def _blocks(text: str) -> Iterator[str]:
    """The bodies of the fenced blocks that are Python or do not say what they are; the last need not be closed."""
    lines = text.split("\n")
    tries, at = _CLOSINGS_TRIED, 0
    while at < len(lines):
        opening = _OPENING.fullmatch(lines[at])
        at += 1
        if opening is None:
            continue
        before, fence, language, rest = opening.groups()
        if "`" in rest or (before.strip() and rest.strip()):
            continue
        start, ends = at, _ends(lines, at, fence)
        at = next(ends)
        if language.lower() in _PYTHON:
            body = _cleaned("\n".join(lines[start:at]))
            if _parsed(body) is None:
                for end in itertools.islice(ends, tries):
                    tries -= 1
                    longer = _cleaned("\n".join(lines[start:end]))
                    if _parsed(longer) is not None:
                        at, body = end, longer
                        break
            yield body
        at += 1


def _ends(lines: list[str], start: int, fence: str) -> Iterator[int]:
    """The lines that may close a fence, and at last the end of the text."""
    for at in range(start, len(lines)):
        closing = _CLOSING.fullmatch(lines[at])
        if closing is not None and closing[1].startswith(fence):
            yield at
    yield len(lines)


def _cleaned(body: str) -> str:
    return textwrap.dedent(body.replace("\ufeff", "")).strip("\n")


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _binds(tree: ast.Module, entry: str) -> bool:
    names = _bound(tree.body)
    if not names.isdisjoint({entry, "*"}):
        return True
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return "Solution" in names and any(entry in _bound(node.body) for node in classes)


def _bound(body: list[ast.stmt]) -> set[str]:
    """The names that a module or a class binds, `*` for all of another module; what functions keep to themselves is none."""
    names: set[str] = set()
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
                names.update(*(inner.names for inner in ast.walk(node) if isinstance(inner, ast.Global)))
            case ast.Lambda() | ast.AnnAssign(value=None):
                pass
            case ast.comprehension(iter=iterated, ifs=conditions):
                todo += [iterated, *conditions]
            case ast.alias(name=name, asname=alias):
                names.add(alias or name.partition(".")[0])
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
                todo += ast.iter_child_nodes(node)
            case _:
                todo += ast.iter_child_nodes(node)
    return names
