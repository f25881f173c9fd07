"""Questions with one mathematical answer."""

import functools
from pathlib import Path

from pydantic import Field

from envhub.environment import EnvironmentConfig
from envhub.environments.math_verify.tasks import FAMILIES, LEVELS, from_jsonl, procedural
from envhub.errors import RewardFault
from envhub.limits import Limits
from envhub.messages import ActionLike, Message
from envhub.rewards import reward
from envhub.rewards.math_verify import Policy, Verdict, typed, verify
from envhub.single_turn import SingleTurnEnvironment
from envhub.tasks import Task, TaskSet


class MathVerifyConfig(EnvironmentConfig):
    r"""Where the questions come from, and how they are put.

    `data` is a JSON-lines file; without it `families` and `levels` (1 easy to 4) are drawn from. `question` and `answer`
    name the columns (empty: found by their usual names); the share `eval_fraction` of the rows is the split eval (1: all
    of them), the rest is train. `instruction` follows each question. `policy` makes choices of judging otherwise.
    """

    data: Path | None = None
    question: str = ""
    answer: str = ""
    eval_fraction: float = Field(0.2, gt=0, le=1)
    families: tuple[str, ...] = tuple(FAMILIES)
    levels: tuple[int, ...] = LEVELS
    policy: Policy = Policy()
    instruction: str = r"Put your final answer in \boxed{}."


_typed = functools.lru_cache(maxsize=4096)(typed)


@reward(name="correct", isolation="inline", seconds=30)
async def math_reward(text: str, answer: object, environment: object = None) -> float:
    """1 when the text's final answer equals the gold answer, else 0. Fails (a fault) where that cannot be decided."""
    config = getattr(environment, "config", None)
    policy = config.policy if isinstance(config, MathVerifyConfig) else Policy()
    judgement = await verify(text, _typed(str(answer)), policy)
    if judgement.verdict is Verdict.unverifiable:
        raise RewardFault("correct", f"the answer {judgement.answer!r} cannot be verified: {judgement.reason}")
    return float(bool(judgement))


class MathVerifyEnvironment(SingleTurnEnvironment):
    r"""Answer a question; the last `\boxed{…}` counts. Reward 1 for an equivalent answer, else 0."""

    name = "math_verify"
    Config = MathVerifyConfig
    limits = Limits(max_turns=1, max_turn_tokens=1024)
    rewards = (math_reward,)

    config: MathVerifyConfig

    @functools.cached_property
    def tasks(self) -> TaskSet:
        config = self.config
        if config.data is not None:
            return from_jsonl(config.data, config.question, config.answer, config.eval_fraction)
        return procedural(config.families, config.levels)

    def opening(self, task: Task) -> tuple[Message, ...]:
        *earlier, last = super().opening(task)
        instruction = f"\n{self.config.instruction}" if self.config.instruction else ""
        return (*earlier, Message(last.role, f"{last.text}{instruction}"))

    def oracle(self) -> ActionLike:
        return rf"\boxed{{{self.task.answer}}}"
