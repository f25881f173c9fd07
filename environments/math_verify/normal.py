"""A normal form for answers, a filter for hostile ones, and exact numbers. No expression is ever evaluated here."""

import re
from fractions import Fraction

MOST_CHARACTERS = 256
_MOST_DIGITS = 40
_MOST_NESTING = 20
_MOST_EXPONENT = 10_000

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\u00ad]|\\\\phantom\\{[^{}]*\\}")
_SUPER_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_DROPPED = re.compile(r"\\(?:left|right|displaystyle|,|;|!|quad|qquad|\s)|~|\$")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?![\d,])")
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}")
_BRACELESS = re.compile(r"\\([dt]?frac)\s*(\d)\s*(\d)")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
_REPEATING = re.compile(r"(\d+\.\d*)\\overline\{(\d+)\}")
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{([+-]?\d+)\}\{([+-]?\d+)\}|([+-]?\d+)/(\d+)")

# Commands that an answer may hold. What is not here is not mathematics that a verifier needs.
_COMMANDS = frozenset({
    "frac", "dfrac", "tfrac", "sqrt", "pi", "infty", "cdot", "times", "div", "pm", "mp", "le", "leq", "ge", "geq",
    "ne", "neq", "lt", "gt", "in", "cup", "cap", "emptyset", "varnothing", "sin", "cos", "tan", "cot", "sec", "csc",
    "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp", "binom", "dbinom", "begin", "end",
    "theta", "alpha", "beta", "gamma", "delta", "lambda", "mu", "phi", "omega", "sigma", "overline", "circ",
    "degree", "lfloor", "rfloor", "lceil", "rceil", "text", "mathrm", "mathbf", "textbf", "mathbb", "mid", "left",
    "right", "lbrace", "rbrace", "langle", "rangle",
})  # fmt: skip
_UNEVALUATED = ("sum", "int", "lim", "prod", "bmod", "pmod", "mod", "max", "min")
_REFUSED_WORDS = re.compile(
    r"\b(?:or|if|otherwise|incorrect|wrong|not|maybe|either|import|open|exec|eval|lambda|os|sys)\b", re.IGNORECASE
)
_REFUSED = re.compile(r"\\(?:approx|to|rightarrow|neg|forall|exists|ldots|dots|cdots|sim)(?![a-z])|\.\.\.|…|['\"`]|__")
_BARE_RELATION = re.compile(r"^\s*(?:[<>≤≥]|\\(?:le|ge|lt|gt|leq|geq)\b)")
_TOWER = re.compile(r"\^\s*\{?[^{}^]*\^|\*\*[^*]*\*\*")
_EXPONENT = re.compile(r"(?:\^|\*\*)\s*\{?\s*\(?\s*-?\s*(\d+)")
_FACTORIAL = re.compile(r"(\d+)\s*!|\)\s*!")
_BINOMIAL = re.compile(r"\\d?binom\s*\{?\s*(\d+)")


def normalise(text: str) -> str:
    """An answer without what only concerns its looks: spacing commands, thousands commas, digits of other scripts."""
    text = _INVISIBLE.sub("", text).replace("\u2212", "-")
    text = _SUPER_RUN.sub(lambda match: "^{" + match[0].translate(_SUPERSCRIPTS) + "}", text)
    text = "".join(str(ord_digit) if (ord_digit := _digit(char)) is not None else char for char in text)
    text = text.replace("π", r"\pi ").replace("∞", r"\infty ").replace("√", r"\sqrt ")
    text = re.sub(r"\\sqrt\s+(\w)", r"\\sqrt{\1}", text)
    text = _THOUSANDS.sub(lambda match: re.sub(r"[^\d]", "", match[0]), text)
    text = _DROPPED.sub("", text.replace(r"\$", ""))
    text = _BRACELESS.sub(r"\\\1{\2}{\3}", text)
    text = re.sub(r"\\text\s*\{([^{}]*)\}\s*$", r"\\text{\1}", text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".")


def refusal(text: str, gold: str) -> str:
    """Why an answer is refused without being computed, or an empty string.

    Refused are answers that hedge, restate the task, name more than one value where the gold answer has one, or would
    cost more to compute than an answer may.
    """
    if len(text) > MOST_CHARACTERS:
        return f"it has over {MOST_CHARACTERS} characters"
    if any(len(run) > _MOST_DIGITS for run in re.findall(r"\d+", text)):
        return f"it has a number of over {_MOST_DIGITS} digits"
    if _depth(text) > _MOST_NESTING:
        return "it is nested too deeply"
    if _REFUSED.search(text) or _BARE_RELATION.search(text):
        return "it holds something that is no value"
    if not _REFUSED_WORDS.search(gold) and _REFUSED_WORDS.search(text):
        return "it holds words that are no value"
    commands = set(re.findall(r"\\([a-zA-Z]+)", text))
    for name in _UNEVALUATED:
        if name in commands and f"\\{name}" not in gold:
            return f"it leaves \\{name} uncomputed"
    if re.search(r"\d\s*_", text) and "_" not in gold:
        return "it holds a subscript"
    unknown = commands - _COMMANDS - set(re.findall(r"\\([a-zA-Z]+)", gold)) - set(_UNEVALUATED)
    if unknown:
        return f"it holds \\{sorted(unknown)[0]}"
    if r"\pm" in text and r"\pm" not in gold and "," not in gold and "{" not in gold:
        return "it names two values"
    return _too_costly(text)


def _too_costly(text: str) -> str:
    if _TOWER.search(text):
        return "it holds a tower of powers"
    if any(int(power) > _MOST_EXPONENT for power in _EXPONENT.findall(text)):
        return f"it holds a power over {_MOST_EXPONENT}"
    for match in _FACTORIAL.finditer(text):
        if match[1] is None or int(match[1]) > 3000:
            return "it holds a factorial that is too large"
    if any(int(number) > 1000 for number in _BINOMIAL.findall(text)):
        return "it holds a binomial that is too large"
    return ""


def exact_number(text: str) -> Fraction | None:
    """The exact value of a plain integer, decimal or fraction; None for anything else."""
    text = text.replace(" ", "").removesuffix(".")
    if _NUMBER.fullmatch(text):
        return Fraction(text.rstrip(".") if "." in text else text)
    repeating = _REPEATING.fullmatch(text)
    if repeating is not None:
        head, run = Fraction(repeating[1] + "0"), repeating[2]
        return head + Fraction(int(run), (10 ** len(run) - 1) * 10 ** len(repeating[1].partition(".")[2]))
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    if match[4] is not None:
        top, bottom = int(match[4]), int(match[5])
    else:
        top, bottom = int(f"{match[1]}1") * int(match[2]), int(match[3])
    return Fraction(top, bottom) if bottom else None


def is_decimal(text: str) -> bool:
    """Whether a plain number is written with a decimal point."""
    return "." in text and _NUMBER.fullmatch(text.strip()) is not None


def plain_text(text: str) -> str:
    r"""The words of an answer that is only text: `\text{(B)}` is `b`."""
    return _TEXT.sub(r"\1", text).strip().strip("().").strip().lower()


def are_words(text: str) -> bool:
    """Whether a plain text is words alone, such as `yes` or `b`."""
    return re.fullmatch(r"[a-z]+(?: [a-z]+)*", text) is not None


def _digit(char: str) -> int | None:
    """The value of a decimal digit of another script (full-width, Arabic-Indic); None for ASCII and for ①, ², ½."""
    if char.isascii() or not char.isdecimal():
        return None
    return int(char)


def _depth(text: str) -> int:
    deepest = depth = 0
    for char in text:
        depth += (char in "{([") - (char in "})]")
        deepest = max(deepest, depth)
    return deepest
