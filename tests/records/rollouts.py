"""Rollouts for the tests of records: a small one, and a strategy for those of all kinds."""

import math
from typing import Any

from hypothesis import strategies as st

from envhub import (
    Action,
    ImagePart,
    Limits,
    Message,
    Observation,
    Outcome,
    Rollout,
    Task,
    TextPart,
    ToolCall,
    ToolSpec,
    Turn,
)


def nested(value: Any, depth: int) -> Any:
    """A value in lists and objects, as many as `depth`."""
    for level in range(depth):
        value = [value] if level % 2 else {"in": value}
    return value


TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from("\n\r\u2028\u0085\ud800\x00é😀"), max_size=12)
NAMES = TEXT
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers() | st.sampled_from([2**63, -(2**64), 10**400])
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
ODD = st.recursive(
    st.sampled_from([math.nan, math.inf, -math.inf, 2**12_000, {1}, b"\xff", 1j, "\ud83d\ude00", (1, 2)])
    | st.floats()
    | st.text(st.characters(), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([1, "1", True, "True", None, "\ud83d\ude00", "😀", (1,), math.nan]), inner, max_size=4
        )
        | st.builds(nested, inner, st.integers(1, 200))
    ),
    max_leaves=8,
)
"""What environments may put into `info`, and JSON has no form for."""
IMAGES = st.builds(ImagePart, st.binary(max_size=20), st.sampled_from(["image/png", "image/jpeg"]))
CONTENT = TEXT | st.lists(st.builds(TextPart, TEXT) | IMAGES, max_size=3).map(tuple)


@st.composite
def tool_calls(draw) -> ToolCall:
    id, name, raw = draw(st.tuples(TEXT.filter(bool), TEXT, TEXT))
    if draw(st.booleans()):
        return ToolCall(id, name, draw(OBJECTS), raw)
    return ToolCall(id, name, None, raw, draw(TEXT))


CALLS = st.lists(tool_calls(), max_size=2).map(tuple)
REASONING = st.none() | TEXT.filter(bool)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    CONTENT,
    CALLS,
    st.none() | TEXT,
    st.none() | TEXT,
    REASONING,
)
TOOLS = st.builds(ToolSpec, TEXT, TEXT, OBJECTS)
OBSERVATIONS = st.builds(
    Observation, st.lists(MESSAGES, max_size=2).map(tuple), st.none() | st.lists(TOOLS, max_size=2).map(tuple)
)
ACTIONS = st.builds(
    Action, TEXT, CALLS, REASONING, st.just(()), st.sampled_from([None, "stop", "length"]), st.none() | TEXT
)
TURNS = st.builds(
    Turn,
    ACTIONS,
    st.none() | OBSERVATIONS,
    NUMBERS,
    st.booleans(),
    st.booleans(),
    OBJECTS,
    st.integers(0, 99),
    st.integers(0, 99) | st.just(2**64),
)
IDS = st.integers(-(2**127), 2**127)
TASKS = st.builds(Task, TEXT | st.lists(MESSAGES, max_size=2).map(tuple), JSON, OBJECTS, NAMES, TEXT, IDS, IDS)


@st.composite
def rollouts(draw, infos=OBJECTS) -> Rollout:
    """A rollout whose trajectory has sampled and rendered tokens, images and forks, or nothing at all."""
    made = Rollout(
        draw(NAMES),
        draw(TASKS),
        Limits(max_turns=draw(st.integers(1, 9)), max_context_tokens=draw(st.none() | st.integers(2, 99))),
        outcome=draw(st.sampled_from(Outcome)),
        reward=draw(NUMBERS),
        components=draw(st.dictionaries(TEXT, NUMBERS, max_size=2)),
        turns=draw(st.lists(TURNS, max_size=2)),
        opening=draw(st.none() | OBSERVATIONS),
        fault=draw(st.sampled_from([None, "environment", "reward:é", "engine"])),
        error=draw(st.none() | TEXT),
        group=draw(NAMES),
        member=draw(st.integers(0, 9) | st.just(2**70)),
        config=draw(OBJECTS),
        info=draw(infos),
        id=draw(NAMES),
    )
    leaf = None
    for turn in range(draw(st.integers(0, 2))):
        rendered, images = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)), draw(st.integers(0, 2))
        if leaf is not None and draw(st.booleans()):
            leaf = made.trajectory.fork(leaf, rendered, turn=turn, cause=draw(TEXT), images=images)
        else:
            leaf = made.trajectory.add_rendered(leaf, rendered, turn=turn, images=images)
        ids = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
        logprobs = [-draw(st.floats(0, 1e300)) for _ in ids]
        leaf = made.trajectory.add_sampled(
            leaf, made.trajectory.path_ids(leaf), ids, logprobs, [turn] * len(ids), turn=turn, finish_reason="stop"
        )
    return made


def small(index: int = 0, text: str = "hello", **values: Any) -> Rollout:
    """A rollout of one turn that was solved."""
    task = Task("question", id=f"t/{index}", index=index)
    turn = Turn(Action(text), Observation((Message("user", "well"),)), 1.0, True, sampled_tokens=3)
    return Rollout("probe", task, Limits(), Outcome.FINISHED, 1.0, turns=[turn], **values)
