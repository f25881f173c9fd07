import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhub.strict_json import MAX_DEPTH, NotJsonError, dumps, loads

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(VALUES)
def test_json_comes_back_as_it_was(value: object) -> None:
    assert loads(dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested more than 100 deep"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested more than 100 deep"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested more than 100 deep"),
        ("1" * 5000, "a whole number of thousands of digits"),
        ('{"a": [-' + "1" * 5000 + "]}", "a whole number of thousands of digits"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "an object with the key 'b' twice"),
        ("NaN", "NaN is no JSON"),
        ("[-Infinity]", "-Infinity is no JSON"),
        ("1e999", "a number beyond the range of floating point"),
        ('{"a": [1, 2.5, {"b": -1e400}]}', "a number beyond the range of floating point"),
    ],
)
def test_what_breaks_others_is_refused_in_words(text: str, problem: str) -> None:
    with pytest.raises(NotJsonError, match=f"^{problem}$"):
        loads(text)


def test_what_is_nested_less_deeply_is_read() -> None:
    assert dumps(loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)) == "[" * MAX_DEPTH + "]" * MAX_DEPTH


@pytest.mark.parametrize("text", ["", "{", "nan", b"\xff", "'a'"])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="."):
        loads(text)


def test_what_is_not_finite_becomes_text() -> None:
    given_values = {"a": [math.nan, math.inf], "b": (-math.inf, 1.5), "c": {1, }}  # fmt: skip
    assert json.loads(dumps(given_values)) == {"a": ["NaN", "Infinity"], "b": ["-Infinity", 1.5], "c": "{1}"}
