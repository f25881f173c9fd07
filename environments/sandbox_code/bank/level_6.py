"""Level 6: dynamic programming, graphs, parsing, intervals."""

from random import Random

from envhub.environments.sandbox_code.bank import Level, args, choice, integer, many, text

task = Level(6)


def intervals(rng: Random) -> list[list[int]]:
    """Draw up to 6 pairs [start, end] with start < end."""
    return [[start, start + rng.randint(1, 6)] for start in rng.choices(range(20), k=rng.randint(0, 6))]


def graph(rng: Random) -> tuple[int, list[list[int]]]:
    """Draw a number of nodes and up to 6 pairs of different nodes."""
    nodes = rng.randint(3, 7)
    return nodes, [rng.sample(range(nodes), 2) for _ in range(rng.randint(0, 6))]


def load(rng: Random) -> tuple[list[int], list[int], int]:
    """Draw weights, as many values, and a capacity."""
    items = rng.randint(0, 5)
    return rng.choices(range(1, 8), k=items), rng.choices(range(1, 20), k=items), rng.randint(0, 15)


def maze(rng: Random) -> list[str]:
    """Draw a grid of 4 rows of 4 squares with S and E in opposite corners."""
    squares = "S" + "".join(rng.choices("..#", k=14)) + "E"
    return [squares[i : i + 4] for i in range(0, 16, 4)]


def expression(rng: Random, depth: int = 2) -> str:
    """Draw an arithmetic expression of numbers, +, -, * and brackets nested at most `depth` deep."""
    if depth == 0 or rng.random() < 0.3:
        return str(rng.randint(0, 20))
    left, right = expression(rng, depth - 1), expression(rng, depth - 1)
    operation = rng.choice(["+", "-", "*", " + "])
    return f"({left}{operation}{right})" if rng.random() < 0.4 else left + operation + right


def nested_repeats(rng: Random, depth: int = 2) -> str:
    """Draw letters and repeats such as 2[a3[b]]."""
    parts = []
    for _ in range(rng.randint(1, 3)):
        repeat = depth > 0 and rng.random() < 0.6
        parts.append(f"{rng.randint(1, 3)}[{nested_repeats(rng, depth - 1)}]" if repeat else rng.choice("abc"))
    return "".join(parts)


@task(cases=[("abcde", "ace"), ("", "a"), ("abc", "xyz"), ("aab", "aba")], draw=args(text("abc"), text("abc")))
def longest_common_subsequence(a: str, b: str) -> int:
    """Return the length of the longest string that results both from a and from b by deleting any number of
    characters."""
    previous = [0] * (len(b) + 1)
    for x in a:
        current = [0]
        for j, y in enumerate(b):
            current.append(previous[j] + 1 if x == y else max(previous[j + 1], current[j]))
        previous = current
    return previous[-1]


@task(cases=[("kitten", "sitting"), ("", ""), ("abc", ""), ("ab", "ba")], draw=args(text("abc"), text("abc")))
def edit_distance(a: str, b: str) -> int:
    """Return the smallest number of steps that turn a into b, where a step inserts, deletes or replaces one
    character."""
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a):
        current = [i + 1]
        for j, y in enumerate(b):
            current.append(min(previous[j] + (x != y), previous[j + 1] + 1, current[j] + 1))
        previous = current
    return previous[-1]


@task(
    cases=[([1, 3, 4], 6), ([5], 3), ([2], 0), ([], 7), ([2, 5], 11)],
    draw=args(many(integer(1, 9), 0, 4), integer(0, 30)),
)
def fewest_coins(coins: list[int], amount: int) -> int | None:
    """Return the smallest number of coins whose sum is amount, which is not negative; each of the positive coin values
    may be used any number of times. Return 0 for amount 0, and None if the amount cannot be reached."""
    fewest: list[int | None] = [0]
    for total in range(1, amount + 1):
        options = [fewest[total - coin] for coin in coins if coin <= total]
        fewest.append(min((count + 1 for count in options if count is not None), default=None))
    return fewest[amount]


@task(
    cases=[([2, 3, 4], [3, 4, 5], 5), ([], [], 9), ([5], [9], 4), ([1, 1, 1], [2, 3, 4], 2)],
    draw=load,
)
def best_load(weights: list[int], values: list[int], capacity: int) -> int:
    """Item i has the positive weight weights[i] and the positive value values[i]. Choose items, each at most once, whose
    weights together are at most capacity, which is not negative, and return the largest possible sum of their values."""
    best = [0] * (capacity + 1)
    for weight, value in zip(weights, values, strict=True):
        for room in range(capacity, weight - 1, -1):
            best[room] = max(best[room], best[room - weight] + value)
    return best[capacity]


@task(cases=[([3, 1, 4, 2, 5],), ([],), ([2, 2, 2],), ([5, 4, 3],)], draw=args(many(integer(0, 9), 0, 9)))
def longest_increasing_subsequence(numbers: list[int]) -> int:
    """Return the length of the longest strictly ascending list that results from the numbers by deleting any of them; 0
    for an empty list."""
    lengths: list[int] = []
    for i, n in enumerate(numbers):
        lengths.append(1 + max((lengths[j] for j in range(i) if numbers[j] < n), default=0))
    return max(lengths, default=0)


@task(cases=[([[1, 4], [6, 8], [3, 5]],), ([],), ([[1, 2], [2, 3]],), ([[5, 9], [6, 7]],)], draw=args(intervals))
def merge_intervals(intervals: list[list[int]]) -> list[list[int]]:
    """Each interval is a pair [start, end] with start < end. Merge intervals that overlap or touch, such as [1, 2] and
    [2, 3], into one, and return the resulting pairs in ascending order of their starts."""
    result: list[list[int]] = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([start, end])
    return result


@task(cases=[([[9, 10], [9, 11], [10, 12]],), ([],), ([[1, 2]],), ([[1, 5], [2, 3], [2, 4]],)], draw=args(intervals))
def rooms_needed(meetings: list[list[int]]) -> int:
    """Each meeting is a pair [start, end] with start < end. Return the smallest number of rooms in which all meetings
    can be held; a meeting that starts when another one ends can use its room. The result for no meetings is 0."""
    return max((sum(start <= moment < end for start, end in meetings) for moment, _ in meetings), default=0)


@task(
    cases=[(["S.#", ".#.", "..E"],), (["S#E"],), (["SE"],), (["S..", "##.", "E.."],)],
    draw=args(maze),
)
def shortest_path(grid: list[str]) -> int | None:
    """grid is a list of strings of equal length with one "S" and one "E"; "#" is a wall and "." is free. Return the
    smallest number of steps from S to E, where a step goes up, down, left or right to a square that is not a wall and
    not outside; None if E cannot be reached."""
    start = next((i, row.index("S")) for i, row in enumerate(grid) if "S" in row)
    frontier, seen, steps = [start], {start}, 0
    while frontier:
        reached = []
        for i, j in frontier:
            if grid[i][j] == "E":
                return steps
            for x, y in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
                inside = 0 <= x < len(grid) and 0 <= y < len(grid[0])
                if inside and grid[x][y] != "#" and (x, y) not in seen:
                    seen.add((x, y))
                    reached.append((x, y))
        frontier = reached
        steps += 1
    return None


@task(
    cases=[(5, [[0, 1], [1, 2]]), (1, []), (3, [[0, 1], [1, 2], [2, 0]]), (4, [])],
    draw=graph,
)
def count_groups(n: int, friends: list[list[int]]) -> int:
    """n people have the numbers 0 to n - 1, and each pair in friends names two people who are friends. Friends, friends
    of friends and so on form a group; somebody without friends is a group alone. Return the number of groups."""
    group = list(range(n))
    for a, b in friends:
        old, new = group[a], group[b]
        group = [new if label == old else label for label in group]
    return len(set(group))


@task(
    cases=[(4, [[3, 1], [1, 0]]), (2, [[0, 1], [1, 0]]), (1, []), (3, [[2, 0], [2, 1]])],
    draw=graph,
)
def task_order(n: int, before: list[list[int]]) -> list[int] | None:
    """The tasks 0 to n - 1 are to be done one after the other, where a pair [a, b] in before says that a must be done
    before b. At each point do the task with the smallest number that may be done. Return the tasks in that order, or
    None if there is no order that keeps all pairs."""
    order: list[int] = []
    while len(order) < n:
        blocked = {b for a, b in before if a not in order}
        ready = [i for i in range(n) if i not in order and i not in blocked]
        if not ready:
            return None
        order.append(ready[0])
    return order


@task(
    cases=[("2+3*4",), ("7",), ("(1 + 2)*(3-5)",), ("10-4-3",), ("((2))",)],
    draw=args(expression),
)
def evaluate_expression(s: str) -> int:
    """Return the value of the valid arithmetic expression s of non-negative decimal ints, the operators +, - and * (no
    signs before numbers or brackets), and round brackets. * binds stronger than + and -, and operators of equal strength
    apply from left to right. Spaces may be between the parts. Do not use eval."""
    text = s.replace(" ", "")
    position = 0

    def factor() -> int:
        nonlocal position
        if text[position] == "(":
            position += 1
            value = total()
            position += 1
            return value
        start = position
        while position < len(text) and text[position].isdigit():
            position += 1
        return int(text[start:position])

    def product() -> int:
        nonlocal position
        value = factor()
        while text[position : position + 1] == "*":
            position += 1
            value *= factor()
        return value

    def total() -> int:
        nonlocal position
        value = product()
        while position < len(text) and text[position] in "+-":
            operator = text[position]
            position += 1
            value = value + product() if operator == "+" else value - product()
        return value

    return total()


@task(
    cases=[(["##.", "..#", "#.#"],), ([],), (["..."],), (["#.#", "###"],)],
    draw=args(many(text("#.", 4, 4), 0, 4)),
)
def count_islands(grid: list[str]) -> int:
    """grid is a list of strings of equal length, where "#" is land and "." is water. Land squares that touch at a side
    belong to the same island; corners do not count. Return the number of islands; 0 for an empty list."""
    land = {(i, j) for i, row in enumerate(grid) for j, c in enumerate(row) if c == "#"}
    islands = 0
    while land:
        islands += 1
        frontier = [land.pop()]
        while frontier:
            i, j = frontier.pop()
            for square in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
                if square in land:
                    land.remove(square)
                    frontier.append(square)
    return islands


@task(
    cases=[
        ({"a": {"b": 4, "c": 1}, "c": {"b": 2}}, "a", "b"),
        ({}, "a", "a"),
        ({"a": {"b": 1}}, "b", "a"),
        ({"a": {"b": 5}, "b": {"a": 1, "c": 0}}, "a", "c"),
    ],
    draw=lambda rng: (
        {node: {other: rng.randint(0, 9) for other in rng.sample("abcde", 2) if other != node} for node in "abcd"},
        rng.choice("abc"),
        rng.choice("cde"),
    ),
)
def cheapest_route(roads: dict[str, dict[str, int]], start: str, goal: str) -> int | None:
    """roads[x][y] is the cost, not negative, of the one-way road from place x to place y; a place from which no road
    leads away may be missing in roads. Return the smallest total cost of a route from start to goal, 0 if they are the
    same place, and None if there is no route."""
    costs = {start: 0}
    done: set[str] = set()
    while len(done) < len(costs):
        place = min((p for p in costs if p not in done), key=lambda p: costs[p])
        done.add(place)
        for other, cost in roads.get(place, {}).items():
            costs[other] = min(costs.get(other, costs[place] + cost), costs[place] + cost)
    return costs.get(goal)


@task(
    cases=[("applepie", ["apple", "pie"]), ("", []), ("ab", ["a"]), ("aaab", ["aa", "ab"]), ("aaa", ["aa"])],
    draw=args(text("ab", 0, 7), many(text("ab", 1, 3), 0, 4)),
)
def can_split(s: str, words: list[str]) -> bool:
    """Return True if s is a sequence of words from the list without anything between them, otherwise False. Each word,
    none of which is empty, may be used any number of times; the empty string is a sequence of no words."""
    reachable = [True] + [False] * len(s)
    for end in range(1, len(s) + 1):
        reachable[end] = any(reachable[end - len(w)] for w in words if s[:end].endswith(w))
    return reachable[-1]


@task(cases=[("3[ab]c",), ("",), ("2[a3[b]]",), ("10[x]",), ("abc",)], draw=args(nested_repeats))
def expand_repeats(s: str) -> str:
    """s has lower-case letters and repeats of the form N[PART], where N is a positive decimal number and PART is again
    such a string. Replace each repeat by N copies of its expanded PART and return the result; expand_repeats("2[a3[b]]")
    is "abbbabbb". s is valid."""
    stack: list[tuple[str, int]] = []
    result, number = "", 0
    for c in s:
        if c.isdigit():
            number = number * 10 + int(c)
        elif c == "[":
            stack.append((result, number))
            result, number = "", 0
        elif c == "]":
            before, count = stack.pop()
            result = before + result * count
        else:
            result += c
    return result


@task(cases=[("babad",), ("",), ("abc",), ("xabbay",)], draw=args(text("abc", 0, 9)))
def longest_palindrome(s: str) -> str:
    """Return the longest part of s, of neighbouring characters, that reads the same forwards and backwards; of several
    equally long ones the leftmost. The result for the empty string is the empty string."""
    for length in range(len(s), 0, -1):
        for start in range(len(s) - length + 1):
            part = s[start : start + length]
            if part == part[::-1]:
                return part
    return ""


@task(
    cases=[('a,"b,c",d',), ("",), ('"say ""hi""",x',), (",",), ('"",z',)],
    draw=lambda rng: (",".join(rng.choices(["a", "", "bc", '"x,y"', '"q""r"', '""'], k=rng.randint(1, 5))),),
)
def parse_csv_line(line: str) -> list[str]:
    """Split line at its commas into fields and return them. A field in double quotes may contain commas, and two double
    quotes in a row in it stand for one; the quotes around it do not belong to its value. The line is valid; the empty
    line has one field, the empty string."""
    fields, quoted, i = [""], False, 0
    while i < len(line):
        if line[i] == '"':
            if quoted and line[i + 1 : i + 2] == '"':
                fields[-1] += '"'
                i += 1
            else:
                quoted = not quoted
        elif line[i] == "," and not quoted:
            fields.append("")
        else:
            fields[-1] += line[i]
        i += 1
    return fields


@task(
    cases=[("a*c", "abbc"), ("?", ""), ("*", ""), ("a?", "ab"), ("*b", "abc")],
    draw=args(choice("a*", "*b", "?b*", "a?", "*", "*a*b"), text("ab", 0, 5)),
)
def matches_pattern(pattern: str, s: str) -> bool:
    """Return True if pattern matches the whole string s, otherwise False: "?" in the pattern matches any one character,
    "*" any number of characters, also none, and any other character itself."""
    reachable = {0}
    for c in pattern:
        if c == "*":
            reachable = set(range(min(reachable), len(s) + 1)) if reachable else set()
        else:
            reachable = {i + 1 for i in reachable if i < len(s) and c in ("?", s[i])}
    return len(s) in reachable


@task(cases=[([0, 1, 0, 2, 1, 0, 3],), ([],), ([3, 0, 3],), ([1, 2, 3],)], draw=args(many(integer(0, 5), 0, 9)))
def trapped_water(heights: list[int]) -> int:
    """heights are the non-negative heights of bars of width 1 that stand side by side. Return how many units of water
    stay between them after rain: above each bar the water rises to the lower of the highest bar to its left and the
    highest to its right, if both are higher than the bar."""
    total = 0
    for i, height in enumerate(heights):
        level = min(max(heights[: i + 1]), max(heights[i:]))
        total += level - height
    return total
