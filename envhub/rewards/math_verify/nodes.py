"""The syntax tree of an answer: small immutable nodes, and nothing that computes."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Number:
    """A literal. `places` counts the digits after a decimal point; None for a whole number or a repeating decimal."""

    value: Fraction
    places: int | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, or one of the constants `pi`, `e`, `i` and `oo`."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function: `+ * / ^ neg ! sqrt root binom abs floor ceil sin log …`, or `fn:f` for an unknown f."""

    name: str
    arguments: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Words:
    """Text inside mathematics: a unit, a choice, yes or no."""

    text: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit: `%`, `deg`, `$`, or words."""

    value: "Node"
    unit: str


@dataclass(frozen=True, slots=True)
class PlusMinus:
    """`left ± right`; `left` is 0 for a bare `± right`. The lower sign of two comes first for `∓`."""

    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Group:
    """What brackets enclose: `opening` and `closing` are of `( [ {` and `) ] }`; `{` is a set."""

    opening: str
    items: "tuple[Node, ...]"
    closing: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of equal length."""

    rows: "tuple[tuple[Node, ...], ...]"


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain `parts[0] signs[0] parts[1] …`; signs are of `= != < > <= >= in :`."""

    signs: tuple[str, ...]
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Listing:
    """Values with commas between them and no brackets around."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Union:
    """The union of sets."""

    parts: "tuple[Node, ...]"


Node: TypeAlias = Number | Symbol | Call | Words | Quantity | PlusMinus | Group | Matrix | Relation | Listing | Union

CONSTANTS = ("pi", "e", "i", "oo")


def children(node: Node) -> "tuple[Node, ...]":
    """The nodes right below one."""
    match node:
        case Call(_, arguments):
            return arguments
        case Quantity(value, _):
            return (value,)
        case PlusMinus(left, right):
            return (left, right)
        case Group(_, items, _) | Listing(items):
            return items
        case Matrix(rows):
            return tuple(entry for row in rows for entry in row)
        case Relation(_, parts) | Union(parts):
            return parts
    return ()


def all_of(tree: Node) -> Iterator[Node]:
    """Every node of a tree, itself first."""
    todo: list[Node] = [tree]
    while todo:
        node = todo.pop()
        yield node
        todo += children(node)


def symbols(node: Node) -> set[str]:
    """The names of the variables and constants in a tree."""
    return {found.name for found in all_of(node) if isinstance(found, Symbol)}


def variables(node: Node) -> set[str]:
    """The names of the variables in a tree."""
    return symbols(node) - set(CONSTANTS)


def calls(node: Node) -> set[str]:
    """The names of all operators and functions in a tree."""
    return {found.name for found in all_of(node) if isinstance(found, Call)}


def in_radians(degrees: Node) -> Node:
    """An angle in degrees as a number."""
    return Call("/", (Call("*", (degrees, Symbol("pi"))), Number(Fraction(180))))
