"""Executors run one episode of an environment with an engine and record it as a rollout."""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from envhub.agents.engines.base import Engine, Generation, Request, SamplingParams
from envhub.agents.parsers.base import Parser
from envhub.agents.rendering.base import Renderer, TemplateError
from envhub.driver import Driver, StepResult
from envhub.errors import DeadlineError, EngineFault, EnvironmentFault, Fault, ModelFault, RewardFault, UserError
from envhub.guard import described, text_of
from envhub.limits import Limits
from envhub.messages import Action, ImagePart, Message, Observation, ToolSpec
from envhub.outcome import Outcome
from envhub.rollout import Rollout, Turn
from envhub.specs import EnvironmentSpec
from envhub.tasks import Task, hashed_seed
from envhub.trajectory import TokenRecordError

T = TypeVar("T")
_LONG_CHARACTERS = 100_000


@dataclass(slots=True)
class Episode:
    """The state of one running episode. `stage` says what it waits for, for whoever looks for stuck rollouts."""

    rollout: Rollout
    driver: Driver
    limits: Limits
    sampling: SamplingParams
    seed: int | None = None
    messages: list[Message] = field(default_factory=list)
    tools: tuple[ToolSpec, ...] = ()
    images: list[ImagePart] = field(default_factory=list)
    leaf: int | None = None
    sampled: int = 0
    stage: str = "reset"
    since: float = field(default_factory=time.monotonic)

    def enter(self, stage: str) -> None:
        """Say what the episode does from now on."""
        self.stage = stage
        self.since = time.monotonic()


class Executor(ABC):
    """Runs episodes on one engine. Shared by all rollouts; keeps no state of any of them but the list of those in flight.

    Limits are enforced here: turns, tokens a turn and an episode, context, and times. What the environment, a tool or a
    reward does wrong ends its rollout with a fault; it never raises out of `run`. A `UserError` and a cancellation do.
    """

    def __init__(self, engine: Engine, renderer: Renderer | None = None, parser: Parser | None = None) -> None:
        if engine.speaks == "tokens" and renderer is None:
            raise UserError(f"engine {engine.name!r} speaks tokens: the executor needs the model's renderer")
        self.engine = engine
        self.renderer = renderer
        self.parser = parser
        self.in_flight: dict[str, Episode] = {}

    async def run(
        self,
        spec: EnvironmentSpec,
        task: Task,
        *,
        config: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        sampling: SamplingParams | None = None,
        group: str = "",
        member: int = 0,
        attempt: int = 0,
        seed: int | None = None,
    ) -> Rollout:
        """Run one episode of `task` in a fresh environment and return its record, whatever happens in it.

        `limits` default to the environment's own, `sampling` to the full distribution. With a `seed`, each request has one
        of its own, made of it, the group, member, attempt and turn; without, the engine's randomness is used. Raises
        UserError, and CancelledError after the environment was closed.
        """
        sampling = sampling or SamplingParams()
        driver = Driver(spec, config)
        limits = limits or driver.limits
        driver.step_seconds = limits.step_seconds
        rollout = Rollout(
            spec.id, task, limits, config=dict(driver.config), content_hash=spec.content_hash,
            target=spec.target, group=group,
            member=member, attempt=attempt, model=self.engine.model, sampling=sampling.model_dump(),
        )  # fmt: skip
        episode = Episode(rollout, driver, limits, sampling, seed)
        self.in_flight[rollout.id] = episode
        began = time.monotonic()
        try:
            await self._run(episode)
        finally:
            self.in_flight.pop(rollout.id, None)
            rollout.seconds = time.monotonic() - began
            await asyncio.shield(driver.close())
        rollout.reward = math.fsum(turn.reward for turn in rollout.turns)
        return rollout

    @abstractmethod
    async def play(self, episode: Episode) -> Outcome:
        """Play an episode that was reset, and say how it ended."""

    async def _run(self, episode: Episode) -> None:
        rollout = episode.rollout
        try:
            async with asyncio.timeout(episode.limits.episode_seconds) as scope:
                observation, info = await episode.driver.reset(rollout.task)
                rollout.opening, rollout.info = observation, dict(info)
                await self._open(episode, observation)
                rollout.outcome = await self.play(episode)
        except TimeoutError:
            if not scope.expired():
                raise
            rollout.outcome = Outcome.TRUNCATED_TIME
            rollout.error = f"the episode's {episode.limits.episode_seconds:g} s ended while in {episode.stage}"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            problem = EngineFault(f"engine {self.engine.name!r} was cancelled from inside in {episode.stage}")
            self._fault(rollout, Outcome.ENGINE_FAULT, "engine", problem)
        except ModelFault as problem:
            self._fault(rollout, Outcome.MODEL_FAULT, "model", problem)
        except RewardFault as problem:
            self._fault(rollout, Outcome.ENVIRONMENT_FAULT, f"reward:{problem.reward}", problem)
        except DeadlineError as problem:
            self._fault(rollout, Outcome.ENVIRONMENT_FAULT, "deadline", problem)
        except EnvironmentFault as problem:
            self._fault(rollout, Outcome.ENVIRONMENT_FAULT, "environment", problem)
        except EngineFault as problem:
            self._fault(rollout, Outcome.ENGINE_FAULT, "engine", problem)
        except TokenRecordError as problem:
            self._fault(rollout, Outcome.ENGINE_FAULT, "token_record", problem)

    @staticmethod
    def _fault(rollout: Rollout, outcome: Outcome, kind: str, problem: Exception) -> None:
        rollout.outcome, rollout.fault, rollout.error = outcome, kind, text_of(problem)

    async def _open(self, episode: Episode, observation: Observation) -> None:
        episode.messages.extend(observation.messages)
        episode.images.extend(_images(observation.messages))
        episode.tools = observation.tools or ()
        if self.renderer is not None and self.engine.speaks == "tokens":
            ids = await self._render_all(self.renderer, episode)
            episode.leaf = episode.rollout.trajectory.add_rendered(None, ids, turn=0, images=len(episode.images))

    async def take_turn(self, episode: Episode) -> Outcome | None:
        """Let the model act once and the environment answer; the outcome where that ended the episode."""
        rollout = episode.rollout
        given: Sequence[int] = () if episode.leaf is None else rollout.trajectory.path_ids(episode.leaf)
        context = len(given)  # the record's list of ids grows in place
        budget, limit = self._budget(episode, context)
        if budget < 1:
            return limit
        began = time.monotonic()
        generation = await self._generate(episode, given, budget)
        engine_seconds = time.monotonic() - began
        action = self._record(episode, given, generation, budget)
        sampled = generation.sampled_tokens or len(generation.token_ids)
        episode.sampled += sampled
        prompt_tokens = generation.prompt_tokens or context
        episode.messages.append(action.message)
        turn = Turn(action, prompt_tokens=prompt_tokens, sampled_tokens=sampled, engine_seconds=engine_seconds)
        rollout.turns.append(turn)
        episode.enter("step")
        result = await episode.driver.step(action)
        rollout.turns[-1] = _answered(turn, result, time.monotonic() - episode.since)
        for name, value in result.components.items():
            rollout.components[name] = rollout.components.get(name, 0.0) + value
        if result.terminated:
            return Outcome.FINISHED
        if result.truncated:
            return Outcome.TRUNCATED_ENVIRONMENT
        await self._extend(episode, generation, result.observation)
        return None

    def _budget(self, episode: Episode, context: int) -> tuple[int, Outcome]:
        """How many tokens the turn may sample, and the limit that says so first."""
        limits = episode.limits
        budget, limit = limits.max_turn_tokens, Outcome.TRUNCATED_TOKENS
        if episode.sampling.max_tokens is not None:
            budget = min(budget, episode.sampling.max_tokens)
        if limits.max_episode_tokens is not None:
            budget = min(budget, limits.max_episode_tokens - episode.sampled)
        for most in (limits.max_context_tokens, self.engine.max_context):
            if most is not None and most - context < budget:
                budget, limit = most - context, Outcome.TRUNCATED_CONTEXT
        return budget, limit

    async def _generate(self, episode: Episode, given: Sequence[int], budget: int) -> Generation:
        rollout, turn = episode.rollout, len(episode.rollout.turns)
        request = Request(
            id=f"{rollout.id}-{turn}", token_ids=given, max_tokens=budget, sampling=episode.sampling,
            stop_token_ids=() if self.renderer is None else self.renderer.stop_token_ids,
            messages=tuple(episode.messages), tools=episode.tools, images=tuple(episode.images), task=rollout.task,
            turn=turn, seed=_seed(episode),
            oracle=episode.driver.oracle if episode.driver.has_oracle else None,
        )  # fmt: skip
        episode.enter("generate")
        try:
            async with asyncio.timeout(episode.limits.turn_seconds) as scope:
                return await self.engine.generate(request)
        except (Fault, UserError):
            raise
        except Exception as problem:  # an engine may be another package's, or a script of the user
            if not scope.expired():
                raise EngineFault(f"engine {self.engine.name!r} raised {described(problem)}") from problem
            seconds = episode.limits.turn_seconds
            raise EngineFault(f"engine {self.engine.name!r} did not finish turn {turn} within {seconds:g} s") from None

    def _record(self, episode: Episode, given: Sequence[int], generation: Generation, budget: int) -> Action:
        if self.engine.speaks == "chat" or self.renderer is None or episode.leaf is None:
            if generation.action is None:
                raise EngineFault(f"engine {self.engine.name!r} gave no action")
            return Action.of(generation.action)
        if len(generation.token_ids) > budget:
            count = len(generation.token_ids)
            raise EngineFault(f"engine {self.engine.name!r} sampled {count} tokens where {budget} were allowed")
        if not all(map(math.isfinite, generation.logprobs)):
            raise EngineFault(f"engine {self.engine.name!r} gave a logprob that is not finite")
        reported = generation.prompt_token_ids
        episode.leaf = episode.rollout.trajectory.add_sampled(
            episode.leaf, given if reported is None else reported, generation.token_ids, generation.logprobs,
            generation.versions, turn=len(episode.rollout.turns), finish_reason=generation.finish_reason,
        )  # fmt: skip
        text = self.renderer.decode(generation.token_ids)
        for stop in episode.sampling.stop:
            text = text.split(stop, 1)[0]
        if self.parser is None:
            return Action(text, token_ids=generation.token_ids, finish_reason=generation.finish_reason)
        parsed = self.parser.parse(text)
        return Action(
            parsed.text,
            parsed.tool_calls,
            parsed.reasoning,
            generation.token_ids,
            generation.finish_reason,
            parsed.error,
        )

    async def _extend(self, episode: Episode, generation: Generation, observation: Observation) -> None:
        """Append the observation to the conversation, and to the record what of it is new."""
        tools_changed = observation.tools is not None and observation.tools != episode.tools
        history = tuple(episode.messages)
        episode.messages.extend(observation.messages)
        new_images = _images(observation.messages)
        episode.images.extend(new_images)
        if observation.tools is not None:
            episode.tools = observation.tools
        renderer = self.renderer
        if renderer is None or episode.leaf is None:
            return
        turn, trajectory = len(episode.rollout.turns), episode.rollout.trajectory
        cause = "tools_changed"
        if not tools_changed:
            following = await _rendered(
                lambda: renderer.continue_from(history, generation.token_ids, observation.messages, episode.tools),
                observation.messages,
            )
            if following.token_ids is not None:
                episode.leaf = trajectory.add_rendered(
                    episode.leaf, following.token_ids, turn=turn, images=len(new_images)
                )
                return
            cause = following.cause
        ids = await self._render_all(renderer, episode)
        episode.leaf = trajectory.fork(episode.leaf, ids, turn=turn, cause=cause, images=len(episode.images))

    @staticmethod
    async def _render_all(renderer: Renderer, episode: Episode) -> list[int]:
        return await _rendered(lambda: renderer.render(episode.messages, episode.tools), episode.messages)


async def _rendered(render: Callable[[], T], messages: Sequence[Message]) -> T:
    """What `render` makes of messages of the environment: off the event loop where they are long.

    Raises EnvironmentFault for a conversation that the model's template refuses.
    """
    try:
        if sum(len(message.text) for message in messages) <= _LONG_CHARACTERS:
            return render()
        return await asyncio.to_thread(render)
    except TemplateError as problem:
        raise EnvironmentFault(str(problem)) from problem


def _answered(turn: Turn, result: StepResult, seconds: float) -> Turn:
    return Turn(
        turn.action, result.observation, result.reward, result.terminated, result.truncated, result.info,
        turn.prompt_tokens, turn.sampled_tokens, turn.engine_seconds, seconds,
    )  # fmt: skip


def _images(messages: Sequence[Message]) -> list[ImagePart]:
    return [image for message in messages if not isinstance(message.content, str) for image in message.images]


def _seed(episode: Episode) -> int | None:
    if episode.seed is None:
        return None
    rollout = episode.rollout
    return hashed_seed(episode.seed, rollout.group, rollout.member, rollout.attempt, len(rollout.turns))
