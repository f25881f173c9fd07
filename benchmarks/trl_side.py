"""TRL's GRPOTrainer on rollouts that are made already: for the proof of agreement, and for what is measured against it."""

import os
import warnings
from collections.abc import Callable, Sequence
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
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vLLM's version, which is not used here
        from trl import GRPOConfig, GRPOTrainer

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

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    settings = GRPOConfig(
        output_dir=str(output), use_cpu=True, bf16=False, shuffle_dataset=False, disable_tqdm=True, report_to="none",
        save_strategy="no", logging_strategy="no", lr_scheduler_type="constant", num_generations=len(members[groups[0]]),
        **options,
    )  # fmt: skip
    made = optimizer(loaded.parameters()) if optimizer is not None else None
    trainer = GRPOTrainer(
        model=loaded, reward_funcs=earned, args=settings, train_dataset=Dataset.from_dict({"prompt": groups}),
        processing_class=AutoTokenizer.from_pretrained(model), rollout_func=give, optimizers=(made, None),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer
