"""The token record: a tree of token segments, and the training samples read from it.

A segment is a run of token ids with one origin: rendered (by a template) or sampled (by the engine). A training sample
is a root-to-leaf path. The invariant, checked on insertion: what the engine was given is exactly the path's token ids.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envhub.errors import EnvhubError

RENDERED = "rendered"
SAMPLED = "sampled"


class TokenRecordError(EnvhubError):
    """The record's invariant is broken: a bug in an engine or an executor, never something to train on."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens of one origin.

    For sampled segments `logprobs` (natural log, after temperature) and `versions` (the engine's weight version) hold one
    entry a token; both are empty for rendered ones. `turn` counts the model's turns from 0; rendered segments carry the
    turn that they lead to. `packed_ids` (int32) and `packed_logprobs` (float32) are the same numbers as they lie in an array,
    since reading millions of them out of Python's objects one by one would be most of what batching costs.

    Raises TokenRecordError for an id that is no integer of 32 bits and a logprob that is no number.
    """

    parent: int | None
    origin: str
    token_ids: tuple[int, ...]
    turn: int
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    finish_reason: str | None = None
    images: int = 0
    packed_ids: bytes = field(init=False, repr=False, compare=False)
    packed_logprobs: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "packed_ids", array("i", self.token_ids).tobytes())
            object.__setattr__(self, "packed_logprobs", array("f", self.logprobs).tobytes())
        except (TypeError, OverflowError) as error:
            raise TokenRecordError(
                f"turn {self.turn}: tokens that are no integers with numbers for logprobs: {error}"
            ) from error

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        out: dict[str, Any] = {
            "parent": self.parent,
            "origin": self.origin,
            "token_ids": list(self.token_ids),
            "turn": self.turn,
        }
        if self.origin == SAMPLED:
            out |= {
                "logprobs": list(self.logprobs),
                "versions": list(self.versions),
                "finish_reason": self.finish_reason,
            }
        if self.images:
            out["images"] = self.images
        return out

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Segment":
        """Inverse of `to_dict`."""
        return cls(
            value["parent"],
            value["origin"],
            tuple(value["token_ids"]),
            value["turn"],
            tuple(value.get("logprobs", ())),
            tuple(value.get("versions", ())),
            value.get("finish_reason"),
            value.get("images", 0),
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One root-to-leaf path as parallel lists of length T.

    `mask[t]` is True for an action token that this sample trains; a sampled segment that several paths share is trained
    in the first of them only, so that a rollout's action tokens are counted once. `logprobs` is 0.0, `versions` and
    `turns` are -1 at tokens that were not sampled.
    """

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    versions: list[int]
    turns: list[int]

    @property
    def action_tokens(self) -> int:
        """How many tokens are trained."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Drift:
    """A history that did not continue the recorded tokens: where, and why (template, edited history, re-tokenisation)."""

    turn: int
    cause: str
    position: int = 0


@dataclass(slots=True)
class Trajectory:
    """The segments of one rollout, in the order in which they were added; parents come before their children."""

    segments: list[Segment] = field(default_factory=list)
    forks: list[Drift] = field(default_factory=list)
    _paths: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def add_rendered(self, parent: int | None, token_ids: Sequence[int], *, turn: int, images: int = 0) -> int:
        """Append rendered tokens under `parent` (None: a new root) and return the segment's index."""
        return self._add(Segment(parent, RENDERED, tuple(token_ids), turn, images=images))

    def add_sampled(
        self,
        parent: int,
        given: Sequence[int],
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        *,
        turn: int,
        finish_reason: str | None = None,
    ) -> int:
        """Append what the engine sampled after it was `given` the path of `parent`; return the segment's index.

        Raises TokenRecordError where `given` is not the path's ids, or counts of ids, logprobs and versions differ.
        """
        path = self.path_ids(parent)
        if given is not path and list(given) != path:
            place = next(
                (i for i, (a, b) in enumerate(zip(given, path, strict=False)) if a != b), min(len(given), len(path))
            )
            raise TokenRecordError(
                f"turn {turn}: the engine was given {len(given)} tokens that differ from the recorded {len(path)} "
                f"at position {place}"
            )
        if not len(token_ids) == len(logprobs) == len(versions):
            raise TokenRecordError(
                f"turn {turn}: {len(token_ids)} sampled tokens came with {len(logprobs)} logprobs "
                f"and {len(versions)} weight versions"
            )
        return self._add(
            Segment(parent, SAMPLED, tuple(token_ids), turn, tuple(logprobs), tuple(versions), finish_reason)
        )

    def fork(self, leaf: int, token_ids: Sequence[int], *, turn: int, cause: str, images: int = 0) -> int:
        """Record that the conversation goes on from `token_ids` instead of from `leaf`, because its history was rewritten.

        The new path shares the leading segments of the old one that `token_ids` begins with; the rest becomes one
        rendered segment. Counts a `Drift` with the position of the first differing token; returns the new leaf.
        """
        ids, old = list(token_ids), self.path_ids(leaf)
        position = next((i for i, (a, b) in enumerate(zip(ids, old, strict=False)) if a != b), min(len(ids), len(old)))
        self.forks.append(Drift(turn, cause, position))
        parent, shared = None, 0
        for index in self.path(leaf)[:-1]:
            end = shared + len(self.segments[index].token_ids)
            if end > position or end >= len(ids):
                break
            parent, shared = index, end
        return self.add_rendered(parent, ids[shared:], turn=turn, images=images)

    def path_ids(self, leaf: int) -> list[int]:
        """The token ids from the root to `leaf`, inclusive. The list is shared: do not change it."""
        if leaf not in self._paths:
            ids: list[int] = []
            for index in self.path(leaf):
                ids.extend(self.segments[index].token_ids)
            self._paths[leaf] = ids
        return self._paths[leaf]

    def path(self, leaf: int) -> list[int]:
        """The segment indices from the root to `leaf`, inclusive."""
        indices: list[int] = []
        at: int | None = leaf
        while at is not None:
            indices.append(at)
            at = self.segments[at].parent
        return indices[::-1]

    @property
    def leaves(self) -> list[int]:
        """The segments without children, in order."""
        parents = {segment.parent for segment in self.segments}
        return [index for index in range(len(self.segments)) if index not in parents]

    @property
    def action_tokens(self) -> int:
        """How many tokens were sampled in all."""
        return sum(len(segment.token_ids) for segment in self.segments if segment.origin == SAMPLED)

    @property
    def fork_causes(self) -> dict[str, int]:
        """How often each cause forked the conversation."""
        return dict(Counter(drift.cause for drift in self.forks))

    def trained_paths(self) -> list[list[tuple[Segment, bool]]]:
        """The segments of each training sample, from the root on, and whether the sample trains them (see `Sample`).

        There is one for each leaf whose path has action tokens not trained in an earlier one.
        """
        seen: set[int] = set()
        out = []
        for leaf in self.leaves:
            path, trains = [], False
            for index in self.path(leaf):
                segment = self.segments[index]
                fresh = segment.origin == SAMPLED and index not in seen
                path.append((segment, fresh))
                trains = trains or (fresh and bool(segment.token_ids))
                seen.add(index)
            if trains:
                out.append(path)
        return out

    def samples(self) -> list[Sample]:
        """The training samples, token by token."""
        return [_sample(path) for path in self.trained_paths()]

    def _add(self, segment: Segment) -> int:
        if segment.parent is not None and not 0 <= segment.parent < len(self.segments):
            raise TokenRecordError(f"no segment {segment.parent} to add to")
        self.segments.append(segment)
        index = len(self.segments) - 1
        self._extend_path(segment, index)
        return index

    def _extend_path(self, segment: Segment, index: int) -> None:
        """Keep one list of ids a live leaf: the parent's list moves on to its first child, so a turn costs its own tokens."""
        if segment.parent is None:
            self._paths[index] = list(segment.token_ids)
        elif (ids := self._paths.pop(segment.parent, None)) is not None:
            ids.extend(segment.token_ids)
            self._paths[index] = ids

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "segments": [segment.to_dict() for segment in self.segments],
            "forks": [{"turn": drift.turn, "cause": drift.cause, "position": drift.position} for drift in self.forks],
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Trajectory":
        """Inverse of `to_dict`; checks that parents come before their children. Raises TokenRecordError."""
        made = cls()
        for entry in value["segments"]:
            segment = Segment.from_dict(entry)
            if segment.origin == SAMPLED and not len(segment.token_ids) == len(segment.logprobs) == len(
                segment.versions
            ):
                raise TokenRecordError(f"segment {len(made.segments)} has uneven ids, logprobs and versions")
            made._add(segment)
        made.forks = [Drift(entry["turn"], entry["cause"], entry.get("position", 0)) for entry in value["forks"]]
        return made


def _sample(path: Sequence[tuple[Segment, bool]]) -> Sample:
    sample = Sample([], [], [], [], [])
    for segment, trained in path:
        count, sampled = len(segment.token_ids), segment.origin == SAMPLED
        sample.token_ids.extend(segment.token_ids)
        sample.mask.extend([trained] * count)
        sample.logprobs.extend(segment.logprobs if sampled else [0.0] * count)
        sample.versions.extend(segment.versions if sampled else [-1] * count)
        sample.turns.extend([segment.turn if sampled else -1] * count)
    return sample


def iterate_samples(trajectories: Sequence[Trajectory]) -> Iterator[tuple[int, Sample]]:
    """Every sample of every trajectory, with the trajectory's position."""
    for position, trajectory in enumerate(trajectories):
        for sample in trajectory.samples():
            yield position, sample
