"""TRL's GRPOTrainer, on rollouts that are made already or on its own: for the proof of agreement, and as the yardstick."""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envhub.rollout import Rollout

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func, which gives it the completions


def replaying_trainer(
    model: Path,
    rollouts: Sequence[Rollout],
    output: Path,
    *,
    optimizer: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Any:
    """A GRPOTrainer in float32 on the CPU that learns from `rollouts` in place of sampling some.

    The rollouts stand group by group, as many in each, in single rows; what comes after the first action token is the
    completion, in which observations are masked. `optimizer` makes one of the model's parameters (default: TRL's AdamW);
    `options` are GRPOConfig's.
    """
    samples = [rollout.trajectory.samples()[0] for rollout in rollouts]
    begins = [sample.mask.index(True) for sample in samples]
    groups = list(dict.fromkeys(rollout.group for rollout in rollouts))
    members = {group: [n for n, rollout in enumerate(rollouts) if rollout.group == group] for group in groups}

    def give(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        left = {group: list(numbers) for group, numbers in members.items()}
        order = [left[prompt].pop(0) for prompt in prompts]
        return {
            "prompt_ids": [samples[n].token_ids[: begins[n]] for n in order],
            "completion_ids": [samples[n].token_ids[begins[n] :] for n in order],
            "logprobs": [samples[n].logprobs[begins[n] :] for n in order],
            "env_mask": [[int(trained) for trained in samples[n].mask[begins[n] :]] for n in order],
            "reward": [rollouts[n].reward for n in order],
        }

    def earned(reward: list[float], **_: Any) -> list[float]:
        return reward

    return _trainer(
        model, output, groups, earned, optimizer, rollout_func=give, shuffle_dataset=False,
        num_generations=len(members[groups[0]]), **{"bf16": False, **options},
    )  # fmt: skip


@dataclass(slots=True)
class Steps:
    """What whole steps of TRL took and sampled: seconds of each, of which `sampling`, its prompts, and the tokens of its
    completions."""

    seconds: list[float] = field(default_factory=list)
    sampling: list[float] = field(default_factory=list)
    prompts: list[list[list[int]]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def whole_steps(
    model: Path, questions: Sequence[str], reward: Callable[[str], float], output: Path, **options: Any
) -> Steps:
    """Train with TRL's own sampling on the CPU, in float32 unless `options`, which are GRPOConfig's, say otherwise.

    Returns what it took.

    A step's seconds go from before it samples to after its optimizer step.
    """
    from transformers import TrainerCallback

    def earned(completions: list[list[dict[str, str]]], completion_ids: list[list[int]], **_: Any) -> list[float]:
        out.tokens.append(sum(map(len, completion_ids)))
        return [reward(messages[-1]["content"]) for messages in completions]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            out.seconds.append(time.perf_counter() - self.began)

    out = Steps()
    prompts = [[{"role": "user", "content": question}] for question in questions]
    trainer = _trainer(model, output, prompts, earned, None, **options)
    trainer.add_callback(Clock())
    sample = trainer._generate

    def noting(prompts: Any, *rest: Any) -> Any:
        began = time.perf_counter()
        made = sample(prompts, *rest)
        out.sampling.append(time.perf_counter() - began)
        out.prompts.append(made[0])
        return made

    trainer._generate = noting
    trainer.train()
    return out


def _trainer(
    model: Path, output: Path, prompts: Sequence[Any], reward: Any, optimizer: Callable[[Any], Any] | None,
    *, rollout_func: Any = None, **options: Any,
) -> Any:  # fmt: skip
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vLLM's version
        from trl import GRPOConfig, GRPOTrainer

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    settings = GRPOConfig(
        output_dir=str(output), use_cpu=True, disable_tqdm=True, report_to="none",
        save_strategy="no", logging_strategy="no", lr_scheduler_type="constant", **{"bf16": False, **options},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=loaded, reward_funcs=reward, args=settings, train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
        processing_class=AutoTokenizer.from_pretrained(model), rollout_func=rollout_func,
        optimizers=(None if optimizer is None else optimizer(loaded.parameters()), None),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer
