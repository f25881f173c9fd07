"""Level 1, lists and dicts: functions of one line."""

from envhub.environments.sandbox_code.bank import args, choice, integer, many, mapping, text
from envhub.environments.sandbox_code.bank.level_1 import task

INT = integer()
INTS = many(integer())
SOME_INTS = many(integer(), low=1)
WORDS = many(text(low=1, high=6), 0, 5)
COUNTS = mapping(choice("a", "b", "c"), integer(0, 20), 0, 3)


@task(cases=[([3, 1, 2],), ([5],), ([0, 9],), ([-1, -2],)], draw=args(SOME_INTS))
def first_element(items: list[int]) -> int:
    """Return the first element of the non-empty list items."""
    return items[0]


@task(cases=[([3, 1, 2],), ([5],), ([0, 9],), ([-1, -2],)], draw=args(SOME_INTS))
def last_element(items: list[int]) -> int:
    """Return the last element of the non-empty list items."""
    return items[-1]


@task(cases=[([3, 1, 2],), ([],), ([0],), ([7, 7, 7, 7],)], draw=args(INTS))
def list_length(items: list[int]) -> int:
    """Return the number of elements in the list items."""
    return len(items)


@task(cases=[([3, 1, 2],), ([],), ([-5, 5],), ([10],)], draw=args(INTS))
def list_sum(numbers: list[int]) -> int:
    """Return the sum of the numbers in the list; the sum of an empty list is 0."""
    return sum(numbers)


@task(cases=[([3, 7, 2],), ([5],), ([-4, -9],), ([1, 1],)], draw=args(SOME_INTS))
def list_max(numbers: list[int]) -> int:
    """Return the largest number in the non-empty list."""
    return max(numbers)


@task(cases=[([3, 7, 2],), ([5],), ([-4, -9],), ([1, 1],)], draw=args(SOME_INTS))
def list_min(numbers: list[int]) -> int:
    """Return the smallest number in the non-empty list."""
    return min(numbers)


@task(cases=[([3, 1, 2],), ([],), ([5, 5, -1],), ([9],)], draw=args(INTS))
def sort_list(numbers: list[int]) -> list[int]:
    """Return a new list with the numbers in ascending order."""
    return sorted(numbers)


@task(cases=[([3, 1, 2],), ([],), ([5],), ([0, 0, 1],)], draw=args(INTS))
def reverse_list(items: list[int]) -> list[int]:
    """Return a new list with the elements of items in reverse order."""
    return items[::-1]


@task(cases=[([3, 1], 1), ([], 1), ([2, 4], 3), ([0], 0)], draw=args(many(integer(0, 5), 0, 5), integer(0, 5)))
def contains_number(numbers: list[int], n: int) -> bool:
    """Return True if n is in the list numbers, otherwise False."""
    return n in numbers


@task(cases=[([1, 2], 3), ([], 5), ([0], 0), ([-1], 4)], draw=args(INTS, INT))
def append_item(items: list[int], item: int) -> list[int]:
    """Return a new list with the elements of items followed by item."""
    return [*items, item]


@task(cases=[([3, 1, 2],), ([5, 6],), ([0, 9, 9],), ([-1, -2],)], draw=args(many(INT, 2)))
def second_element(items: list[int]) -> int:
    """Return the second element of the list items, which has at least 2."""
    return items[1]


@task(cases=[([3, 1, 2], 1), ([5], 0), ([0, 9, 8], 2), ([7, 4], 0)], draw=args(many(INT, 4), integer(0, 3)))
def element_at(items: list[int], index: int) -> int:
    """Return the element of items at index, counted from 0. index is always less than the length of items."""
    return items[index]


@task(
    cases=[([3, 1, 2],), ([5],), ([0, 9, 8, 4, 6],), ([7, 7, 1],)],
    draw=args(choice([4, 1, 9], [8], [2, 7, 5, 3, 1], [6, 0, 6])),
)
def middle_element(items: list[int]) -> int:
    """Return the element in the middle of the list items, whose length is odd."""
    return items[len(items) // 2]


@task(cases=[([3, 1, 2], 2), ([], 1), ([4, 5], 9), ([6], 0)], draw=args(INTS, integer(0, 6)))
def first_n_elements(items: list[int], n: int) -> list[int]:
    """Return a new list of the first n elements of items, or of all if there are fewer than n. n is not negative."""
    return items[:n]


@task(cases=[([3, 1, 2],), ([],), ([5, 6],), ([0, 9, 8, 4],)], draw=args(INTS))
def last_two_elements(items: list[int]) -> list[int]:
    """Return a new list of the last two elements of items, in order; all elements if there are fewer than two."""
    return items[-2:]


@task(cases=[([3, 1, 2],), ([],), ([5],), ([0, 9],)], draw=args(INTS))
def drop_last(items: list[int]) -> list[int]:
    """Return a new list with all elements of items but the last; the result for an empty list is an empty list."""
    return items[:-1]


@task(cases=[([3, 1, 2, 8],), ([],), ([5],), ([0, 9, 4],)], draw=args(INTS))
def inner_elements(items: list[int]) -> list[int]:
    """Return a new list with all elements of items but the first and the last; an empty list if there are fewer than
    three."""
    return items[1:-1]


@task(
    cases=[([3, 1, 2, 8], 1, 3), ([5, 6], 0, 2), ([4, 7, 9], 1, 1), ([0, 1, 2], 0, 1)],
    draw=args(many(INT, 5), integer(0, 2), integer(2, 5)),
)
def slice_of(items: list[int], start: int, end: int) -> list[int]:
    """Return a new list with the elements of items from index start up to, but without, index end."""
    return items[start:end]


@task(cases=[([3, 1, 2, 8],), ([],), ([5, 6, 7],), ([4],)], draw=args(INTS))
def first_half(items: list[int]) -> list[int]:
    """Return a new list with the first len(items) // 2 elements of items."""
    return items[: len(items) // 2]


@task(cases=[([1, 2], 3), ([], 5), ([0], 0), ([-1], 4)], draw=args(INTS, INT))
def prepend_item(items: list[int], item: int) -> list[int]:
    """Return a new list with item followed by the elements of items."""
    return [item, *items]


@task(cases=[([1, 2], [3]), ([], []), ([0], []), ([], [4, 5])], draw=args(INTS, INTS))
def join_lists(a: list[int], b: list[int]) -> list[int]:
    """Return a new list with the elements of a followed by the elements of b."""
    return a + b


@task(cases=[([1, 2], 2), ([], 5), ([7], 0), ([3, 4, 5], 1)], draw=args(many(INT, 0, 3), integer(0, 4)))
def repeat_list(items: list[int], n: int) -> list[int]:
    """Return a new list with the elements of items repeated n times; repeat_list([1, 2], 2) is [1, 2, 1, 2]. n is not
    negative."""
    return items * n


@task(cases=[([3, 1, 2],), ([],), ([5, 5, -1],), ([9],)], draw=args(INTS))
def sort_descending(numbers: list[int]) -> list[int]:
    """Return a new list with the numbers in descending order, the largest first."""
    return sorted(numbers, reverse=True)


@task(cases=[([3, 1, 2, 1],), ([],), ([5, 5, 5],), ([9],)], draw=args(many(integer(0, 5))))
def sorted_different(numbers: list[int]) -> list[int]:
    """Return a new list with each different number of the list once, in ascending order."""
    return sorted(set(numbers))


@task(cases=[(["pear", "fig", "apple"],), ([],), (["b", "a", "b"],), (["one"],)], draw=args(WORDS))
def sort_words(words: list[str]) -> list[str]:
    """Return a new list with the words, which have only lower case letters, in alphabetical order."""
    return sorted(words)


@task(
    cases=[(["pear", "fig", "apple"],), (["x"],), (["b", "a", "b"],), (["two", "three"],)],
    draw=args(many(text(low=1), 1, 5)),
)
def last_in_alphabet(words: list[str]) -> str:
    """Return the word of the non-empty list that comes last in the alphabet. The words have only lower case letters."""
    return max(words)


@task(cases=[([3, 1, 2, 1], 1), ([], 4), ([5, 5, 5], 5), ([9], 8)], draw=args(many(integer(0, 3)), integer(0, 3)))
def count_number(numbers: list[int], n: int) -> int:
    """Return how many times n occurs in the list numbers."""
    return numbers.count(n)


@task(cases=[([3, 1, 2, 1],), ([],), ([5, 5, 5],), ([9],)], draw=args(many(integer(0, 5))))
def count_different(numbers: list[int]) -> int:
    """Return how many different numbers are in the list; an empty list has 0."""
    return len(set(numbers))


@task(cases=[([3, 1, 3],), ([],), ([5, 6],), ([9],)], draw=args(many(integer(0, 7), 0, 6)))
def has_duplicates(numbers: list[int]) -> bool:
    """Return True if any number occurs more than once in the list, otherwise False."""
    return len(set(numbers)) < len(numbers)


@task(cases=[([],), ([0],), ([1, 2],), ([-5],)], draw=args(many(INT, 0, 1)))
def is_empty_list(items: list[int]) -> bool:
    """Return True if the list items has no elements, otherwise False."""
    return len(items) == 0


@task(cases=[([3, 1, 2],), ([5],), ([0, 9],), ([-1, -2],)], draw=args(SOME_INTS))
def sum_of_ends(numbers: list[int]) -> int:
    """Return the first number plus the last number of the non-empty list. A list of one number counts it twice."""
    return numbers[0] + numbers[-1]


@task(cases=[([3, 1, 2, 3],), ([5],), ([0, 9],), ([-1, -1],)], draw=args(many(integer(0, 1), 1, 5)))
def ends_are_equal(numbers: list[int]) -> bool:
    """Return True if the first and the last number of the non-empty list are equal, otherwise False."""
    return numbers[0] == numbers[-1]


@task(cases=[([3, 7, 2],), ([5],), ([-4, -9],), ([1, 1],)], draw=args(SOME_INTS))
def max_minus_min(numbers: list[int]) -> int:
    """Return the largest number of the non-empty list minus the smallest."""
    return max(numbers) - min(numbers)


@task(cases=[([4, 8],), ([5],), ([1, 2, 2],), ([0, 0, 0],)], draw=args(many(integer(0, 50), 1)))
def whole_average(numbers: list[int]) -> int:
    """Return the sum of the non-negative numbers in the non-empty list divided by their count, rounded down to an
    int."""
    return sum(numbers) // len(numbers)


@task(cases=[([3, 7, 2],), ([5, 5],), ([-4, -9],), ([1, 8, 8, 4],)], draw=args(many(INT, 2)))
def second_largest(numbers: list[int]) -> int:
    """Return the second element of the list when it is sorted in descending order. The list has at least 2 numbers; if
    the largest occurs twice, it is also the second."""
    return sorted(numbers)[-2]


@task(cases=[([3, 7, 2],), ([5, 5],), ([-4, -9, 0],), ([1],)], draw=args(SOME_INTS))
def two_smallest(numbers: list[int]) -> list[int]:
    """Return a new list with the two smallest numbers in ascending order; all numbers if there are fewer than two."""
    return sorted(numbers)[:2]


@task(cases=[([1, 2], [3]), ([], []), ([0], [4, 5]), ([7, 7], [1, 2])], draw=args(INTS, INTS))
def has_more_elements(a: list[int], b: list[int]) -> bool:
    """Return True if the list a has more elements than the list b, otherwise False."""
    return len(a) > len(b)


@task(
    cases=[([1, 2], [2, 1]), ([], []), ([0], [0, 0]), ([7, 7, 1], [7, 1, 1])],
    draw=args(*[many(integer(0, 1), 1, 2)] * 2),
)
def same_when_sorted(a: list[int], b: list[int]) -> bool:
    """Return True if the lists a and b are equal after both are sorted, otherwise False."""
    return sorted(a) == sorted(b)


@task(cases=[([1, 2], [3]), ([], []), ([0], [4, 5]), ([-7], [7])], draw=args(INTS, INTS))
def sum_of_two_lists(a: list[int], b: list[int]) -> int:
    """Return the sum of all numbers in the lists a and b together; an empty list adds 0."""
    return sum(a) + sum(b)


@task(cases=[([1, 2], [5]), ([], []), ([0], [-4]), ([7, 7], [10])], draw=args(INTS, INTS))
def larger_sum(a: list[int], b: list[int]) -> int:
    """Return the larger of the sum of the list a and the sum of the list b; the sum of an empty list is 0."""
    return max(sum(a), sum(b))


@task(cases=[([3, 1, 2], 2), ([], 1), ([4, 5], 9), ([6], 0)], draw=args(INTS, integer(0, 6)))
def sum_of_first(numbers: list[int], n: int) -> int:
    """Return the sum of the first n numbers of the list, or of all if there are fewer than n. n is not negative; the
    sum of no numbers is 0."""
    return sum(numbers[:n])


@task(cases=[([3, -1],), ([],), ([-5, 2],), ([7],)], draw=args(INTS))
def sum_is_positive(numbers: list[int]) -> bool:
    """Return True if the sum of the numbers in the list is greater than 0, otherwise False; an empty list gives
    False."""
    return sum(numbers) > 0


@task(cases=[([True, True],), ([True, False],), ([],), ([False],)], draw=args(many(choice(True, True, False), 0, 4)))
def all_true(values: list[bool]) -> bool:
    """Return True if every value in the list is True, otherwise False; an empty list gives True."""
    return all(values)


@task(cases=[([False, True],), ([False, False],), ([],), ([True],)], draw=args(many(choice(True, False, False), 0, 4)))
def any_true(values: list[bool]) -> bool:
    """Return True if at least one value in the list is True, otherwise False; an empty list gives False."""
    return any(values)


@task(cases=[(4,), (1,), (0,), (7,)], draw=args(integer(0, 12)))
def count_up_to(n: int) -> list[int]:
    """Return the list of the ints from 1 to n, both included; an empty list for n = 0. n is not negative."""
    return list(range(1, n + 1))


@task(cases=[(4,), (1,), (0,), (7,)], draw=args(integer(0, 12)))
def count_down_from(n: int) -> list[int]:
    """Return the list of the ints from n down to 1, both included; an empty list for n = 0. n is not negative."""
    return list(range(n, 0, -1))


@task(cases=[(3,), (1,), (0,), (5,)], draw=args(integer(0, 12)))
def list_of_zeros(n: int) -> list[int]:
    """Return a list of n zeros; an empty list for n = 0. n is not negative."""
    return [0] * n


@task(cases=[(5, 2), (1, 1), (0, 3), (-4, -9)], draw=args(INT, INT))
def sorted_pair(a: int, b: int) -> list[int]:
    """Return a list of the two numbers a and b, the smaller one first."""
    return sorted([a, b])


@task(
    cases=[([[1, 2], [3]], 0), ([[4], []], 1), ([[5], [6, 7]], 1), ([[0]], 0)],
    draw=args(many(INTS, 3, 3), integer(0, 2)),
)
def row_sum(rows: list[list[int]], index: int) -> int:
    """Return the sum of the numbers in the row of rows at index, counted from 0; an empty row has the sum 0."""
    return sum(rows[index])


@task(
    cases=[({"a": 1, "b": 2}, "b"), ({"x": 0}, "x"), ({"k": -5}, "k"), ({"a": 9, "c": 3}, "a")],
    draw=lambda rng: ({c: rng.randint(0, 99) for c in "abc"}, rng.choice("abc")),
)
def value_of_key(mapping: dict[str, int], key: str) -> int:
    """Return the value that the dict mapping has for key. key is always in mapping."""
    return mapping[key]


@task(
    cases=[({"a": 1, "b": 2}, "b"), ({"x": 0}, "y"), ({}, "k"), ({"a": 9}, "a")],
    draw=args(COUNTS, choice("a", "b", "c")),
)
def has_key(mapping: dict[str, int], key: str) -> bool:
    """Return True if key is one of the keys of the dict mapping, otherwise False."""
    return key in mapping


@task(cases=[({"b": 1, "a": 2},), ({},), ({"x": 0},), ({"c": 3, "a": 3, "b": 3},)], draw=args(COUNTS))
def sorted_keys(mapping: dict[str, int]) -> list[str]:
    """Return a list of the keys of the dict mapping in ascending order; an empty list if it is empty."""
    return sorted(mapping)


@task(cases=[({"b": 1, "a": 2},), ({},), ({"x": 0},), ({"c": 3, "a": 3},)], draw=args(COUNTS))
def sum_of_values(mapping: dict[str, int]) -> int:
    """Return the sum of the values of the dict mapping; the sum for an empty dict is 0."""
    return sum(mapping.values())
