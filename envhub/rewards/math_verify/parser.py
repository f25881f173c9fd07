"""A recursive-descent parser for the subset of LaTeX and plain text in which answers are written.

It reads and never computes: no `eval`, no `parse_expr`, no macros. What it does not know it refuses.
"""

import re
from fractions import Fraction

from envhub.rewards.math_verify.lexer import Token, UnreadableError, tokens
from envhub.rewards.math_verify.nodes import (
    Call,
    Group,
    Listing,
    Matrix,
    Node,
    Number,
    PlusMinus,
    Quantity,
    Relation,
    Symbol,
    Union,
    Words,
    all_of,
    in_radians,
)

MOST_NESTING = 20
MOST_ITEMS = 100
_RELATIONS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=", "le": "<=", "ge": ">=", "ne": "!=",
    "in": "in", ":": ":",
}  # fmt: skip
_FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "log", "ln", "exp", "lg",
})  # fmt: skip
_PLAIN = {"sqrt", "pi", "infinity", "inf", "arcsin", "arccos", "arctan", *_FUNCTIONS}
_PLAIN_NAMES = {"infinity": "infty", "inf": "infty", "arcsin": "asin", "arccos": "acos", "arctan": "atan"}
_CONSTANTS = {"pi": "pi", "infty": "oo"}
_OPERATORS = frozenset({
    *_RELATIONS, "cup", "cap", "setminus", "cdot", "times", "pm", "mp", "div", "circ", "rfloor", "rceil", "langle", "rangle",
})  # fmt: skip
_PLAIN_FRACTIONS = (
    ["{", "number", "}", "{", "number", "}"], ["{", "number", "}", "number"], ["number", "{", "number", "}"],
    ["number", "number"],
)  # fmt: skip
_CHOICES = frozenset(map(Symbol, "ABCDEFGHIJ"))
_MAGNITUDES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_FIRST_GROUP = re.compile(r"[1-9]\d{0,2}")
_JOINING = re.compile(r"\s*(?:and|or|,)\s*")
_CLOSING = {"(": (")", "]"), "[": (")", "]"), "{s": ("}s",)}
_UNIT = re.compile(r"[A-Za-z][A-Za-z .^0-9/²³-]*")
_MATRICES = frozenset({"matrix", "pmatrix", "bmatrix", "vmatrix", "Bmatrix", "array", "smallmatrix"})
_STARTS = frozenset({"number", "letter", "(", "[", "{", "{s", "|", "begin"})


def parse(text: str, *, thousands: bool = True) -> Node:
    """The tree of an answer (what a box holds). Raises UnreadableError.

    With `thousands`, `12,345` is one number, else a list of two.
    """
    found = tokens(text)
    while found and found[-1].kind in (".", ",", ";"):
        if [token.kind for token in found[-2:]] == [".", "."]:
            raise UnreadableError("it trails off")
        found.pop()
    if not found:
        raise UnreadableError("it is empty")
    parser = _Parser(found, thousands)
    node = parser.listing()
    if parser.peek() is not None:
        raise UnreadableError(f"it has {parser.next().text!r} where nothing more is expected")
    return node


def readings(text: str, *, parted: bool) -> list[Node]:
    """The trees that an answer may mean. Raises UnreadableError.

    A comma between groups of three digits parts thousands; where the gold answer is `parted`, it may part values as well:
    `(0,100)`.
    """
    both = parted and re.search(r"\d,\d{3}", text) is not None
    return [parse(text, thousands=thousands) for thousands in ((True, False) if both else (True,))]


class _Parser:
    def __init__(self, found: list[Token], thousands: bool) -> None:
        self.tokens, self.thousands = found, thousands
        self.at = 0
        self.depth = 0
        self.in_bars = False

    def peek(self, ahead: int = 0) -> str | None:
        """The kind of a token, a command's name, or None at the end."""
        place = self.at + ahead
        if place >= len(self.tokens):
            return None
        token = self.tokens[place]
        return token.text if token.kind == "command" else token.kind

    def next(self) -> Token:
        if self.at >= len(self.tokens):
            raise UnreadableError("it ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def take(self, *kinds: str) -> bool:
        if self.peek() in kinds:
            self.at += 1
            return True
        return False

    def expect(self, kind: str) -> None:
        if not self.take(kind):
            raise UnreadableError(f"it lacks {kind[0]!r}")

    def listing(self) -> Node:
        items, joining = [self.relation()], set[str]()
        while self._joins():
            joining.add(self._joined())
            if len(items) >= MOST_ITEMS:
                raise UnreadableError(f"it lists over {MOST_ITEMS} values")
            items.append(self.relation())
        if joining == {"or"} and all(isinstance(item, Relation) and "=" not in item.signs for item in items):
            return Union(tuple(items))  # x < 1 or x > 3
        return items[0] if len(items) == 1 else Listing(tuple(items))

    def _joins(self) -> bool:
        """Whether another value of a list follows."""
        return self.peek() in (",", ";") or (self._at_joining_text() and self.peek(1) is not None)

    def _joined(self) -> str:
        sign = self.next().text.strip()
        return self.next().text.strip() if sign in (",", ";") and self._at_joining_text() else sign

    def _at_joining_text(self) -> bool:
        return self.peek() == "text" and _JOINING.fullmatch(self.tokens[self.at].text) is not None

    def relation(self) -> Node:
        self.depth += 1
        if self.depth > MOST_NESTING + 1:
            raise UnreadableError("it is nested too deeply")
        parts, signs = [self.union()], list[str]()
        while (kind := self.peek()) in _RELATIONS:
            self.at += 1
            signs.append(_RELATIONS[str(kind)])
            parts.append(self.union())
        self.depth -= 1
        return parts[0] if not signs else Relation(tuple(signs), tuple(parts))

    def union(self) -> Node:
        parts = [self.sum()]
        while self.take("cup"):
            parts.append(self.sum())
        return parts[0] if len(parts) == 1 else Union(tuple(parts))

    def sum(self) -> Node:
        node = self.term()
        while (kind := self.peek()) in ("+", "-", "pm", "mp"):
            self.at += 1
            right = self.term()
            if kind in ("-", "mp"):
                right = _negated(right)
            node = PlusMinus(node, right) if kind in ("pm", "mp") else _added(node, right)
        return node

    def term(self) -> Node:
        if self.take("-"):
            return _negated(self.term())
        if self.take("+"):
            return self.term()
        if self.take("pm"):
            return PlusMinus(Number(Fraction(0)), self.term())
        if self.take("mp"):
            return PlusMinus(Number(Fraction(0)), _negated(self.term()))
        node = self.factor()
        while True:
            kind = self.peek()
            if kind in ("cdot", "times", "*"):
                self.at += 1
                node = Call("*", (node, self._signed()))
            elif kind in ("/", "div"):
                self.at += 1
                node = Call("/", (node, self._signed()))
            elif kind == "text" and not self._at_joining_text():
                node = self._with_words(node, self.next().text)
            elif self._begins():
                node = self._unit_of_letters(node) or self._multiplied(node, self.power())
            else:
                return node

    def factor(self) -> Node:
        """A power, or a mixed number."""
        node = self.power()
        return Call("+", (node, self._fraction())) if self._mixed(node) else node

    def _signed(self) -> Node:
        if self.take("-"):
            return _negated(self._signed())
        return self._signed() if self.take("+") else self.factor()

    def _multiplied(self, left: Node, right: Node) -> Node:
        """A product without a sign; words after a value are its unit."""
        return self._with_words(left, right.text) if isinstance(right, Words) else Call("*", (left, right))

    def _begins(self) -> bool:
        kind = self.peek()
        if kind == "|":
            return not self.in_bars
        if kind == "number":  # `2 3` and `x2` are no products
            return self.at > 0 and self.tokens[self.at - 1].kind in (")", "}", "]")
        return kind in _STARTS or kind in _FUNCTIONS or kind in (
            "frac", "sqrt", "binom", "pi", "infty", "lfloor", "lceil", "overline", "emptyset"
        ) or (kind is not None and self._is_symbol())  # fmt: skip

    def _is_symbol(self) -> bool:
        token = self.tokens[self.at]
        return token.kind == "command" and token.text not in _OPERATORS

    def _mixed(self, node: Node) -> bool:
        """Whether a whole number is followed by a plain fraction: `1\\frac{1}{2}`, `1 1/2`."""
        if not isinstance(node, Number) or node.places is not None or self.tokens[self.at - 1].kind != "number":
            return False
        rest = [self.peek(place) for place in range(8)]
        if rest[:3] == ["number", "/", "number"]:
            return self.tokens[self.at].spaced
        if rest[0] != "frac":
            return False
        if rest[1] == "number" and len(self.tokens[self.at + 1].text) > 1:  # \frac12
            return True
        return any(rest[1 : 1 + len(kinds)] == kinds for kinds in _PLAIN_FRACTIONS)

    def _fraction(self) -> Node:
        top = self.power()
        return Call("/", (top, self.power())) if self.take("/") else top

    def _with_words(self, node: Node, words: str) -> Node:
        words = words.strip()
        if not words:
            return node
        if words.lower() in _MAGNITUDES:
            return _scaled(node, Number(Fraction(_MAGNITUDES[words.lower()])))
        if _UNIT.fullmatch(words) is None:
            raise UnreadableError(f"it holds the text {words!r}")
        unit, power = words, ""
        if self.peek() == "^":
            self.at += 1
            argument = self.argument()
            if not isinstance(argument, Number):
                raise UnreadableError("a unit has a power that is no number")
            power = f"^{argument.value}"
        return _measured(node, unit + power)

    def _unit_of_letters(self, node: Node) -> Node | None:
        """Letters in a row after a number and a space, such as `12 cm`, are a unit where they make one."""
        if (
            not isinstance(node, Number | Quantity)
            or self.tokens[self.at].kind != "letter"
            or not self.tokens[self.at].spaced
        ):
            return None
        end = self.at
        while (
            end < len(self.tokens)
            and self.tokens[end].kind == "letter"
            and (end == self.at or not self.tokens[end].spaced)
        ):
            end += 1
        word = "".join(token.text for token in self.tokens[self.at : end])
        if end - self.at < 2 and end < len(self.tokens):
            return None
        from envhub.rewards.math_verify.units import is_unit

        if not is_unit(word):
            return None
        self.at = end
        return self._with_words(node, word)

    def power(self) -> Node:
        base = self.postfix(self.atom())
        if self.peek() in ("^", "**"):
            self.at += 1
            if self.take("circ"):
                return _measured(base, "deg")
            if self.peek() == "{" and self.peek(1) == "circ" and self.peek(2) == "}":
                self.at += 3
                return _measured(base, "deg")
            base = self.postfix(Call("^", (base, self.argument(signed=True))))
            if self.peek() in ("^", "**"):  # of the exponent, as in a**b**c
                raise UnreadableError("it holds a tower of powers")
        return base

    def postfix(self, node: Node) -> Node:
        while True:
            if self.take("!"):
                if self.peek() == "!":
                    raise UnreadableError("it holds a double factorial")
                node = Call("!", (node,))
            elif self.take("%"):
                node = _measured(node, "%")
            elif self.peek() == "circ":
                self.at += 1
                node = _measured(node, "deg")
            else:
                return node

    def argument(self, *, signed: bool = False) -> Node:
        """What a command takes: braces, one digit, one letter, or one command."""
        if self.take("{"):
            node = self.listing()
            self.expect("}")
            return node
        if signed and self.take("-"):
            return Call("neg", (self.argument(signed=True),))
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is not None and token.kind == "number" and not signed and token.text[0] != "." and len(token.text) > 1:
            self.tokens[self.at] = Token("number", token.text[1:])  # \frac12 takes a digit at a time
            return _number(token.text[0])
        return self.atom()

    def atom(self) -> Node:
        token = self.next()
        kind = token.text if token.kind == "command" else token.kind
        match kind:
            case "number":
                return self._numeral(token.text)
            case "letter":
                return self._letter(token)
            case "text":
                return self._text(token.text)
            case "{":
                node = self.listing()
                self.expect("}")
                return node
            case "(" | "[" | "{s":
                return self._group(kind)
            case "|":
                return self._bars()
            case "lfloor" | "lceil":
                inner = self.relation()
                self.expect("r" + kind[1:])
                return Call("floor" if kind == "lfloor" else "ceil", (inner,))
            case "frac" | "binom":
                top = self.argument()
                return Call("/" if kind == "frac" else "binom", (top, self.argument()))
            case "sqrt":
                return self._root()
            case "overline":
                raise UnreadableError("it holds a line over something")
            case "begin":
                return self._matrix(token.text)
            case "emptyset":
                return Group("{", (), "}")
            case "mathbb":
                inner = self.argument()
                if inner != Symbol("R"):
                    raise UnreadableError("of the sets of numbers only the reals are understood")
                return Group("(", (Call("neg", (Symbol("oo"),)), Symbol("oo")), ")")
            case "$":
                return _measured(self.power(), "$")
            case _ if kind in _CONSTANTS:
                return Symbol(_CONSTANTS[kind])
            case _ if kind in _FUNCTIONS:
                return self._function(kind)
            case _ if token.kind == "command" and kind not in _OPERATORS and kind.isalpha():
                return self._subscripted(kind)
        raise UnreadableError(f"it has {token.text!r} where a value is expected")

    def _numeral(self, text: str) -> Node:
        if self.peek() == "," and _FIRST_GROUP.fullmatch(text) and self._thousands() and self._is_one_number():
            while "." not in text and self.peek() == "," and self._thousands():
                self.at += 1
                text += self.next().text
        elif (grouped := self._grouped(text)) is not None:
            text = grouped
        if self.peek() == "overline" and "." in text and self.peek(1) == "{":
            return self._repeating(text)
        if self.peek() == "." and self.peek(1) == "overline" and "." not in text:
            self.at += 1
            return self._repeating(text + ".")
        if self.peek() == "." and self.peek(1) in (None, "}", ")", ",", "text", "%"):
            self.at += 1
        if self.peek() == "_":
            return self._in_base(text)
        if self.peek() == "letter" and self.tokens[self.at].text in "eE" and not self.tokens[self.at].spaced:
            return self._scientific(text)
        return _number(text)

    def _thousands(self) -> bool:
        """Whether a comma and three digits without a space follow, and no fourth digit nor a lone shorter run after."""
        follows = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else None
        return (
            follows is not None and follows.kind == "number" and not follows.spaced and not self.tokens[self.at].spaced
            and re.fullmatch(r"\d{3}(\.\d+)?", follows.text) is not None
        )  # fmt: skip

    def _is_one_number(self) -> bool:
        """Whether commas may part thousands here: always in answers; in gold answers after a dollar sign or before a point."""
        at = self.at
        while [token.kind for token in self.tokens[at : at + 2]] == [",", "number"]:
            at += 2
        return (
            self.thousands or "." in self.tokens[at - 1].text or (self.at > 1 and self.tokens[self.at - 2].kind == "$")
        )

    def _grouped(self, text: str) -> str | None:
        """`12{,}345` and `12\\,345`: groups of three after one of at most three."""
        if not _FIRST_GROUP.fullmatch(text):
            return None
        at, whole = self.at, text
        while at < len(self.tokens) and "." not in whole:
            kinds = [token.kind for token in self.tokens[at : at + 4]]
            if kinds[:3] == ["{", ",", "}"] and kinds[3:] == ["number"]:
                step = 4
            elif kinds[:1] == ["number"] and self.tokens[at].spaced:
                step = 1
            else:
                break
            digits = self.tokens[at + step - 1].text
            if not re.fullmatch(r"\d{3}(\.\d+)?", digits):
                return None
            whole, at = whole + digits, at + step
        if at == self.at:
            return None
        self.at = at
        return whole

    def _repeating(self, head: str) -> Node:
        self.at += 1
        self.expect("{")
        run = self.next()
        self.expect("}")
        if run.kind != "number" or not run.text.isdigit():
            raise UnreadableError("a line stands over something that is no run of digits")
        shift = 10 ** len(head.partition(".")[2])
        tail = Fraction(int(run.text), (10 ** len(run.text) - 1) * shift)
        return Number(Fraction(head + "0" if head.endswith(".") else head) + tail)

    def _in_base(self, text: str) -> Node:
        self.at += 1
        base = self.argument()
        if not isinstance(base, Number) or base.value.denominator != 1 or not 2 <= base.value <= 36 or "." in text:
            raise UnreadableError("a number has a subscript that is no base")
        if len(text) < 2 or any(int(digit) >= base.value for digit in text):
            raise UnreadableError(f"{text} has no meaning in base {base.value}")
        return Number(Fraction(int(text, int(base.value))))

    def _scientific(self, text: str) -> Node:
        rest = self.tokens[self.at + 1 : self.at + 3]
        signed = len(rest) == 2 and rest[0].kind in "+-" and rest[1].kind == "number" and not rest[0].spaced
        digits = rest[1:] if signed else rest[:1]
        if not digits or digits[0].kind != "number" or digits[0].spaced or not digits[0].text.isdigit():
            return _number(text)
        if int(digits[0].text) > 10_000:
            raise UnreadableError("it holds too large a power")
        self.at += 3 if signed else 2
        power = Fraction(10) ** int(digits[0].text)
        return Number(Fraction(text) * (1 / power if signed and rest[0].kind == "-" else power))

    def _letter(self, token: Token) -> Node:
        word, end = self._word(token)
        if word in _PLAIN:
            self.at = end
            name = _PLAIN_NAMES.get(word, word)
            if name == "sqrt":
                return self._root()
            return Symbol(_CONSTANTS[name]) if name in _CONSTANTS else self._function(name)
        if len(word) >= 4 or word.lower() in ("yes", "no", "or", "and", "not", "if", "the", "true", "odd"):
            self.at = end
            while self.peek() == "letter":  # no solution
                more, self.at = self._word(self.next())
                word += f" {more}"
            return Words(word)
        return self._subscripted(token.text)

    def _word(self, first: Token) -> tuple[str, int]:
        """The letters without a space between them from one that was just taken, and where they end."""
        end = self.at
        while end < len(self.tokens) and self.tokens[end].kind == "letter" and not self.tokens[end].spaced:
            end += 1
        return first.text + "".join(letter.text for letter in self.tokens[self.at : end]), end

    def _subscripted(self, name: str) -> Node:
        if self.take("_"):
            if self.peek() == "text":
                name += "_" + self.next().text
            else:
                inner = self.argument()
                if not isinstance(inner, Number | Symbol):
                    raise UnreadableError("a subscript is neither a number nor a letter")
                name += f"_{inner.value if isinstance(inner, Number) else inner.name}"
        if self.peek() == "'":
            raise UnreadableError("it holds a prime")
        if name in ("f", "g", "h", "F", "G", "P", "Q") and self.peek() == "(" and self.peek(2) in (")", ","):
            self.at += 1
            group = self._group("(")
            arguments = group.items if isinstance(group, Group) else (group,)
            return Call(f"fn:{name}", arguments)
        return Symbol(name)

    def _text(self, words: str) -> Node:
        inner = words.strip()
        if re.fullmatch(r"[-+]?\d+(\.\d+)?", inner):
            return _number(inner) if inner[0] not in "+-" else _signed_number(inner)
        label = re.fullmatch(r"\(?([A-Za-z])\)?[).:]?", inner)
        if label and re.search(r"[).:]$", inner) and self.peek() is not None and not self._joins():
            self._value_of_choice()
            return Words(label[1])
        if not inner:
            return self.power()
        return Words(inner)

    def _value_of_choice(self) -> None:
        """Reads past the value after a letter, `B) 12`. Raises UnreadableError where it is, or holds, another choice."""
        value = self.listing()
        inner = value.items if isinstance(value, Listing) else (value,)
        if any(one in _CHOICES or not all(map(_may_follow_letter, all_of(one))) for one in inner):
            raise UnreadableError("more than a value follows a letter")

    def _group(self, opening: str) -> Node:
        end = _CLOSING[opening]
        bars, self.in_bars = self.in_bars, False
        if self.peek() in end:
            node: Node = Listing(())
        else:
            node = self.listing()
        if self.peek() not in end:
            raise UnreadableError("a bracket is not closed")
        closing = str(self.peek())
        self.at += 1
        self.in_bars = bars
        items = node.items if isinstance(node, Listing) else (node,)
        if opening == "{s":
            return Group("{", items, "}")
        if len(items) == 1 and (
            (opening == "(" and closing == ")") or (isinstance(items[0], Matrix) and opening == "[" and closing == "]")
        ):
            return items[0]  # brackets that only group
        return Group(opening, items, closing)

    def _bars(self) -> Node:
        if self.in_bars:
            raise UnreadableError("bars are not closed")
        self.in_bars = True
        inner = self.relation()
        self.in_bars = False
        self.expect("|")
        return Call("det" if isinstance(inner, Matrix) else "abs", (inner,))

    def _root(self) -> Node:
        if self.take("["):
            degree = self.relation()
            self.expect("]")
            return Call("root", (self.argument(), degree))
        return Call("sqrt", (self.argument(),))

    def _function(self, name: str) -> Node:
        base: Node | None = None
        power: Node | None = None
        for _ in range(2):
            if name == "log" and self.peek() == "_" and base is None:
                self.at += 1
                base = self.argument()
            elif self.peek() == "^" and power is None:
                self.at += 1
                power = self.argument(signed=True)
        if power == Call("neg", (Number(Fraction(1)),)) and name in ("sin", "cos", "tan"):
            name, power = f"a{name}", None
        arguments: tuple[Node, ...] = (_in_radians(self._operand()),)
        if base is not None:
            arguments += (base,)
        node: Node = Call("log" if name == "lg" else name, arguments if name != "lg" else (*arguments, _number("10")))
        return node if power is None else Call("^", (node, power))

    def _operand(self) -> Node:
        """The argument of a function without brackets: a product of simple factors, as in `sin 2x`."""
        if self.peek() == "(":
            return self.power_of_group()
        if self.take("-"):
            return Call("neg", (self._operand(),))
        node = self.power()
        while self._begins() and self.peek() not in _FUNCTIONS and self.peek() not in ("(", "[", "{s", "begin", "|"):
            node = Call("*", (node, self.power()))
        return node

    def power_of_group(self) -> Node:
        self.at += 1
        return self._group("(")

    def _matrix(self, name: str) -> Node:
        if name not in _MATRICES:
            raise UnreadableError(f"it holds a {name}")
        if name == "array" and self.take("{"):
            while self.peek() not in ("}", None):
                self.at += 1
            self.expect("}")
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        while self.peek() != "end":
            if len(rows) * max(1, len(row)) > MOST_ITEMS:
                raise UnreadableError(f"it has over {MOST_ITEMS} entries")
            row.append(self.relation())
            if self.take("&"):
                continue
            rows.append(tuple(row))
            row = []
            if not self.take("row", "\\\\") and self.peek() != "end":
                raise UnreadableError("a matrix is not closed")
        if self.next().text != name or not rows or len({len(one) for one in rows}) != 1:
            raise UnreadableError("the rows of a matrix differ in length")
        return Call("det", (Matrix(tuple(rows)),)) if name == "vmatrix" else Matrix(tuple(rows))


def _may_follow_letter(part: Node) -> bool:
    from envhub.rewards.math_verify.units import is_unit

    if isinstance(part, Quantity):
        return part.unit in ("%", "deg", "$") or is_unit(part.unit)
    return not isinstance(part, Words)


def _measured(value: Node, unit: str) -> Node:
    if isinstance(value, Quantity):
        raise UnreadableError("it has two units")
    return Quantity(value, unit)


def _scaled(node: Node, factor: Number) -> Node:
    if isinstance(node, Quantity):
        return Quantity(_scaled(node.value, factor), node.unit)
    return Call("*", (node, factor))


def _negated(node: Node) -> Node:
    return Quantity(_negated(node.value), node.unit) if isinstance(node, Quantity) else Call("neg", (node,))


def _added(left: Node, right: Node) -> Node:
    """The sum of two terms. A unit in words after the last one is that of all of it: `2+√3 cm`."""
    if isinstance(right, Quantity):
        if isinstance(left, Quantity) and left.unit == right.unit:
            return Quantity(_added(left.value, right.value), right.unit)
        if not isinstance(left, Quantity) and right.unit not in ("%", "deg", "$"):
            return Quantity(_added(left, right.value), right.unit)
    return Call("+", (left, right))


def _in_radians(node: Node) -> Node:
    """An expression with its degrees as numbers: what is under a sine."""
    match node:
        case Quantity(value, "deg"):
            return in_radians(value)
        case Call(name, arguments):
            return Call(name, tuple(map(_in_radians, arguments)))
    return node


def _number(text: str) -> Number:
    places = len(text.partition(".")[2]) if "." in text else None
    return Number(Fraction(text.rstrip(".") if text.startswith(".") is False else text), places or None)


def _signed_number(text: str) -> Node:
    number = _number(text[1:])
    return Call("neg", (number,)) if text[0] == "-" else number
