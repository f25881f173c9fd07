"""Put one program before another, `from __future__` imports of both first."""

import ast


def joined(first: str, second: str) -> str:
    """`first` and then `second` as one program.

    `second` comes alone where it is no Python: its errors are then told with its own line numbers.
    """
    if not first.strip():
        return second
    try:
        nodes = ast.parse(second).body
        features = _future_imports(ast.parse(first).body) + _future_imports(nodes)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return second
    if any(_is_future(node) for node in nodes[len(_head(nodes)) :]):
        return second
    header = "".join(f"{ast.unparse(node)}\n" for node in features)
    return f"{header}{_without(first)}\n{_without(second)}"


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__" and node.level == 0


def _head(nodes: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that may stand before a future import: a docstring, and such imports."""
    count = 0
    for node in nodes:
        docstring = count == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not _is_future(node):
            break
        count += 1
    return nodes[:count]


def _future_imports(nodes: list[ast.stmt]) -> list[ast.stmt]:
    return [node for node in _head(nodes) if _is_future(node)]


def _without(source: str) -> str:
    """The source with its future imports blanked, as long as it was: each becomes an empty tuple over as many lines."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line.encode("utf-8", "surrogatepass") for line in source.split("\n")]
    for node in reversed(_future_imports(ast.parse(source).body)):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        blank = lines[first][: node.col_offset] + b"(" + b"\n" * (last - first) + b")"
        lines[first : last + 1] = (blank + lines[last][node.end_col_offset :]).split(b"\n")
    return b"\n".join(lines).decode("utf-8", "surrogatepass")
