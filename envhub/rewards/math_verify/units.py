"""Units that answers carry: their spellings, and which of them measure the same thing."""

from fractions import Fraction

# dimension, then factor to the first unit of it
_KNOWN: dict[str, tuple[str, Fraction]] = {}


def _add(dimension: str, **factors: str) -> None:
    for spellings, factor in factors.items():
        for name in spellings.split("__"):
            _KNOWN[name] = (dimension, Fraction(factor))


_add("length", m__meter__metre="1", cm__centimeter__centimetre="1/100", mm__millimeter__millimetre="1/1000",
     km__kilometer__kilometre="1000", inch__inches="127/5000", ft__foot__feet="381/1250", yd__yard="1143/1250",
     mi__mile="201168/125")  # fmt: skip
_add("mass", g__gram="1", kg__kilogram="1000", mg__milligram="1/1000", lb__lbs__pound="45359237/100000",
     oz__ounce="45359237/1600000", ton__tonne="1000000")  # fmt: skip
_add("time", s__sec__second="1", min__minute="60", h__hr__hour="3600", day="86400", week="604800", ms__millisecond="1/1000",
     year="31536000", month="2628000")  # fmt: skip
_add("volume", l__liter__litre="1", ml__milliliter__millilitre="1/1000")
_add("money", dollar__usd="1", cent="1/100")
_add("angle", degree__deg="1")
_add("radian", rad__radian="1")
_add("euro", euro="1")
_PLURALS = {f"{name}s" for name in _KNOWN if len(name) > 2 and not name.endswith("s")}


def _split(unit: str) -> tuple[str, str]:
    """A unit without its power, and the power: `square meters` and `m^2` are (`m`, `2`)."""
    words = unit.lower().strip(" .").replace("²", "^2").replace("³", "^3")
    power = "1"
    for word, number in (("square ", "2"), ("sq ", "2"), ("sq. ", "2"), ("cubic ", "3")):
        if words.startswith(word):
            words, power = words.removeprefix(word), number
    if "^" in words:
        words, _, power = words.partition("^")
    words = words.strip(" .")
    return (words[:-1] if words in _PLURALS else words), power


def is_unit(word: str) -> bool:
    """Whether letters after a number are the name of a unit."""
    return _split(word)[0] in _KNOWN


def in_common(unit: str) -> tuple[str, Fraction]:
    """What a unit measures, and its factor to that dimension's own unit. An unknown unit measures itself."""
    if unit == "$":
        return "money", Fraction(1)
    if unit == "deg":
        return "angle", Fraction(1)
    name, power = _split(unit)
    if name not in _KNOWN:
        return f"{name}^{power}" if power != "1" else name, Fraction(1)
    dimension, factor = _KNOWN[name]
    if not power.isdigit() or int(power) > 9:
        return f"{dimension}^{power}", factor
    return (dimension if power == "1" else f"{dimension}^{power}"), factor ** int(power)
