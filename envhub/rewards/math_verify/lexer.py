"""An answer as tokens: characters of other scripts translated, spacing dropped, and what no answer needs refused."""

import re
from dataclasses import dataclass

MOST_CHARACTERS = 256
MOST_DIGITS = 40


class UnreadableError(ValueError):
    """The text is no answer of the supported subset; the message says why."""


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is number, letter, command, text, begin, end or the sign itself; `spaced`: white space came before it."""

    kind: str
    text: str
    spaced: bool = False


_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUPER_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUB_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_PHANTOM = re.compile(r"\\[hv]?phantom\s*\{[^{}]*\}")
_VULGAR = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5),
    "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8), "⅑": (1, 9), "⅒": (1, 10),
}  # fmt: skip
_CHARACTERS = str.maketrans({
    "\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u22c5": r"\cdot ", "\u00b7": r"\cdot ", "\u00f7": r"\div ",
    "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u221e": r"\infty ", "\u03c0": r"\pi ", "\u03b8": r"\theta ",
    "\u03b1": r"\alpha ", "\u03b2": r"\beta ", "\u03b3": r"\gamma ", "\u03bb": r"\lambda ", "\u03bc": r"\mu ",
    "\u03c6": r"\phi ", "\u03c9": r"\omega ", "\u00b0": r"^\circ ", "\u00b1": r"\pm ", "\u2213": r"\mp ",
    "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in ", "\u2205": r"\emptyset ", "\u211d": r"\mathbb{R}",
    "\u2044": "/", "\u2215": "/", "\u2219": r"\cdot ",
    **{char: rf"\frac{{{top}}}{{{bottom}}}" for char, (top, bottom) in _VULGAR.items()},
})  # fmt: skip
_THOUSANDS = re.compile(r"(?<=\d),\\!(?=\d{3}(?!\d))")
_ROOT = re.compile("√\\s*(\\d+(?:\\.\\d+)?|[A-Za-z]|\\\\[a-z]+ )")

_SPACING = frozenset({
    "left", "right", "displaystyle", "textstyle", "quad", "qquad", "bigl", "bigr", "big", "Big", "Bigl", "Bigr", "limits",
    "thinspace", "medspace", "boldsymbol", "bf", "rm", "space", "dotsc",
})  # fmt: skip
_WORDS = frozenset({"text", "mathrm", "mathbf", "textbf", "textit", "mbox", "operatorname", "textrm", "mathit"})
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "leq": "le", "geq": "ge",
    "leqslant": "le", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">", "varnothing": "emptyset", "ast": "cdot",
    "lbrace": "{s", "rbrace": "}s", "lbrack": "[", "rbrack": "]", "vert": "|", "lvert": "|", "rvert": "|", "colon": ":",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "degree": "circ", "sp": "^", "land": "wedge",
}  # fmt: skip
_UPRIGHT = frozenset({"e", "i", "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "log", "ln"})
_TEXT = re.compile(r"\s*\{((?:[^{}]|\^\{\d+\})*)\}")
_TEXT_SPACING = re.compile(r"~|\\[,;: ]")
_MISREAD = frozenset({"dots", "ldots", "cdots", "vdots", "ddots"})
KNOWN = frozenset({
    "frac", "sqrt", "pi", "infty", "cdot", "times", "div", "pm", "mp", "le", "ge", "ne", "<", ">", "in", "cup", "cap",
    "setminus", "emptyset", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "log",
    "ln", "exp", "lg", "binom", "theta", "alpha", "beta", "gamma", "delta", "epsilon", "lambda", "mu", "nu", "phi", "varphi", "psi",
    "rho", "tau", "omega", "sigma", "kappa", "eta", "zeta", "xi", "Delta", "Gamma", "Lambda", "Omega", "Phi", "Psi", "Sigma", "Theta",
    "overline", "circ", "lfloor", "rfloor", "lceil", "rceil", "mathbb", "langle", "rangle", "|", ":", "{s", "}s", "[", "]", "^",
})  # fmt: skip

_PART = re.compile(
    r"(?P<space>\s+|~|\\[,;:! ]|\\$)"
    r"|(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<row>\\\\)"
    r"|(?P<command>\\[A-Za-z]+)"
    r"|(?P<escaped>\\[{}$%|#&_])"
    r"|(?P<joining>(?<=\s)(?:or|and)(?=\s))"
    r"|(?P<letter>[A-Za-z])"
    r"|(?P<sign>\*\*|<=|>=|!=|==|[-+*/^_{}()\[\]|,;:=<>!&.%$'])"
)
_ENVIRONMENT = re.compile(r"\s*\{\s*([A-Za-z]+)\*?\s*\}")


def translated(text: str) -> str:
    """The text with its special characters as LaTeX, digits of other scripts as ASCII, and nothing invisible."""
    text = _THOUSANDS.sub("{,}", _PHANTOM.sub("", _INVISIBLE.sub("", text)))
    text = _SUPER_RUN.sub(lambda run: "^{" + run[0].translate(_SUPERSCRIPTS) + "}", text)
    text = _SUB_RUN.sub(lambda run: "_{" + run[0].translate(_SUBSCRIPTS) + "}", text)
    text = _ROOT.sub(lambda found: rf"\sqrt{{{found[1]}}}", text.replace("π", r"\pi "))
    text = text.replace("√", r"\sqrt ").translate(_CHARACTERS)
    return "".join(str(int(char)) if char.isdecimal() and not char.isascii() else char for char in text)


def tokens(text: str) -> list[Token]:
    """The tokens of an answer. Raises UnreadableError."""
    if len(text) > MOST_CHARACTERS:
        raise UnreadableError(f"it has over {MOST_CHARACTERS} characters")
    text = translated(text.strip())
    out: list[Token] = []
    at, spaced = 0, False
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise UnreadableError(f"it holds {text[at]!r}")
        at, kind, found = part.end(), str(part.lastgroup), part[0]
        if kind == "space":
            spaced = True
            continue
        if kind == "command":
            at = _command(found[1:], text, at, out, spaced)
        elif kind == "escaped":
            out.append(
                Token({"\\{": "{s", "\\}": "}s", "\\%": "%", "\\$": "$", "\\|": "|"}.get(found, found), found, spaced)
            )
        elif kind == "number":
            if max(map(len, found.split("."))) > MOST_DIGITS:
                raise UnreadableError(f"it has a number of over {MOST_DIGITS} digits")
            out.append(Token("number", found, spaced))
        elif kind == "joining":
            out.append(Token("text", found, spaced))
        elif kind == "sign" and found == "$":
            pass  # a bare dollar sign opens or closes mathematics
        else:
            out.append(Token(kind if kind == "letter" else found, found, spaced))
        spaced = False
    return out


def _command(name: str, text: str, at: int, out: list[Token], spaced: bool) -> int:
    if name in _SPACING:
        return at
    if name in ("begin", "end"):
        found = _ENVIRONMENT.match(text, at)
        if found is None:
            raise UnreadableError(f"\\{name} names nothing")
        out.append(Token(name, found[1], spaced))
        return found.end()
    if name in _WORDS:
        words, end = _braced(text, at)
        if name in ("mathrm", "operatorname") and words in _UPRIGHT:
            out.append(Token("letter" if len(words) == 1 else "command", _SAME.get(words, words), spaced))
        else:
            out.append(Token("text", words, spaced))
        return end
    if name == "hspace":
        return _braced(text, at)[1]
    if name in _MISREAD:
        raise UnreadableError("it trails off")
    name = _SAME.get(name, name)
    if name not in KNOWN:
        raise UnreadableError(f"it holds \\{name}")
    out.append(Token(name if not name.isalpha() else "command", name, spaced))
    return at


def _braced(text: str, at: int) -> tuple[str, int]:
    """What the braces of a command hold, with plain spaces and powers (`cm^{2}` is `cm^2`), and where they end."""
    found = _TEXT.match(text, at)
    if found is None:
        raise UnreadableError("a command of text has no braces, or braces inside them")
    inner = _TEXT_SPACING.sub(" ", found[1])
    return inner.replace("{", "").replace("}", ""), found.end()
