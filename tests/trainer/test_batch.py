"""Rows, micro-batches, and the gradient that no partition may change."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envhub.agents.executors import Executor, MultiTurnExecutor, RolloutPool, SingleTurnExecutor
from envhub.agents.session import prepare_agent, started
from envhub.limits import Limits
from envhub.registry import spec
from envhub.rollout import Rollout
from envhub.trainer.algorithms import GRPO, REINFORCE, REINFORCE_BASELINE, RLOO, get_algorithm
from envhub.trainer.batch import assign, build_rows, micro_batches, split, token_rows
from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import TorchStrategy


def test_only_sampled_tokens_are_trained_and_carry_the_engines_logprobs(make_rollout):
    rows = build_rows([make_rollout([([5, 6], [7, 8]), ([9], [10])], 1.0), make_rollout([([5], [6])], 0.0)], RLOO)
    assert rows.token_ids[0].tolist() == [5, 6, 7, 8, 9, 10]
    assert rows.mask.tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert rows.behaviour[0].tolist() == [0, 0, -1, -1, 0, -1]
    assert rows.advantages[0].tolist() == [0, 0, 1, 1, 0, 1]
    assert rows.lengths.tolist() == [6, 2]


def test_a_forked_rollout_trains_each_sampled_token_once_and_counts_once_in_its_group(make_rollout):
    forked = make_rollout([([5, 6], [7, 8])], 1.0)
    leaf = forked.trajectory.fork(1, [5, 6, 99], turn=1, cause="template")
    given_ids = list(forked.trajectory.path_ids(leaf))
    forked.trajectory.add_sampled(leaf, given_ids, [11], [-1.0], [0], turn=1)
    rows = build_rows([forked, make_rollout([([5], [6])], 0.0)], RLOO)
    assert len(rows) == 3
    assert rows.action_tokens == 4
    assert rows.owner.tolist() == [0, 0, 1]
    assert rows.advantages[rows.mask.bool()].tolist() == [1, 1, 1, -1]


def test_a_group_of_equal_rewards_teaches_nothing(make_rollout):
    rollouts = [make_rollout([([5], [6, 7])], 1.0) for _ in range(3)]
    for algorithm in (GRPO, RLOO, REINFORCE_BASELINE):
        assert build_rows(rollouts, algorithm).advantages.abs().max() == 0


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 80))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_micro_batches_hold_every_row_once_within_the_budget(make_rollout, lengths, budget):
    rows = build_rows([make_rollout([([3], [4] * n)], float(i)) for i, n in enumerate(lengths)], RLOO)
    parts = list(micro_batches(rows, budget))
    assert sorted(int(i) for part in parts for i in part.owner) == list(range(len(lengths)))
    assert all(len(part) == 1 or part.token_ids.numel() <= budget for part in parts)


def test_several_updates_hold_every_row_once_with_weights_of_their_own(make_rollout):
    rows = build_rows([make_rollout([([3], [4] * (i + 1))], float(i)) for i in range(6)], RLOO)
    parts = split(rows, 3, RLOO, torch.Generator().manual_seed(0))
    assert sorted(int(i) for part in parts for i in part.owner) == list(range(6))
    assert all(part.weights[part.mask.bool()].tolist() == [0.5] * part.action_tokens for part in parts)


def gradient(path, rows, algorithm, micro_tokens):
    strategy = TorchStrategy(path, Optimization(micro_tokens=micro_tokens, precision="float32", clip_norm=0))
    kept = {}
    strategy.stepper.optimizers[0].step = lambda: kept.update(
        {name: p.grad.clone() for name, p in strategy.model.named_parameters()}
    )
    report = strategy.step(rows, algorithm, 1.0, None, None)
    assert not report.skipped
    return kept, report


NAMES = [
    "ppo",
    "reinforce",
    "reinforce_baseline",
    "rloo",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "gmpo",
    "sapo",
    "opo",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_partition_into_micro_batches_changes_the_gradient(tiny_path, make_rollout, name):
    algorithm = get_algorithm(name).with_options(length=8)
    rollouts = [make_rollout([([3, 4], [5 + i] * (i + 1)), ([9], [8])], float(i % 3), f"g{i // 4}") for i in range(8)]
    rows = build_rows(rollouts, algorithm)
    whole, _ = gradient(tiny_path, rows, algorithm, 100_000)
    parted, _ = gradient(tiny_path, rows, algorithm, 20)
    largest = max(float(value.abs().max()) for value in whole.values())
    assert largest > 0
    for parameter, value in whole.items():
        assert torch.allclose(value, parted[parameter], atol=1e-6 * max(1.0, largest)), parameter


def test_a_penalty_in_the_reward_reaches_the_tokens_before_it(make_rollout):
    rollouts = [make_rollout([([3], [4, 5]), ([9], [6])], 1.0), make_rollout([([3], [7])], 0.0)]
    rows = token_rows(rollouts)
    algorithm = replace(REINFORCE, kl_coef=0.5, gamma=0.5, whiten=False)
    divergence = torch.full_like(rows.mask, 0.2)
    assign(rows, torch.tensor([1.0, 0.0]), algorithm, divergence)
    third = 1.0 - 0.1
    second = -0.1 + 0.5 * third
    first = -0.1 + 0.5 * second
    assert torch.allclose(rows.advantages[0], torch.tensor([0, first, second, 0, third]))
    assert torch.allclose(rows.advantages[1], torch.tensor([0, -0.1, 0, 0, 0]))


def test_one_turn_or_several_give_the_same_gradient_for_the_same_tokens(tiny_path, make_rollout):
    once = [make_rollout([([3, 4], [5, 6, 7])], 1.0), make_rollout([([3, 4], [8, 9, 10])], 0.0)]
    turns = [make_rollout([([3, 4], [5]), ([], [6, 7])], 1.0), make_rollout([([3, 4], [8, 9]), ([], [10])], 0.0)]
    first, _ = gradient(tiny_path, build_rows(once, RLOO), RLOO, 1000)
    second, _ = gradient(tiny_path, build_rows(turns, RLOO), RLOO, 1000)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_scored_logprobs_are_those_of_the_whole_forward_pass(tiny_path, make_rollout):
    rows = build_rows([make_rollout([([3, 4], [5, 6, 7])], 1.0), make_rollout([([9], [8])], 0.0)], RLOO)
    strategy = TorchStrategy(tiny_path, Optimization(precision="float32", micro_tokens=4))
    scored = strategy.score(rows, temperature=0.7)
    with torch.no_grad():
        logits = strategy.model(input_ids=rows.token_ids[:1, :5]).logits / 0.7
    expected = logits.log_softmax(-1)[0, 1:4].gather(-1, rows.token_ids[0, 2:5, None])[:, 0]
    assert torch.allclose(scored[0, 2:5], expected, atol=1e-5)
    assert scored[rows.mask == 0].abs().max() == 0


def test_a_loss_that_is_not_finite_is_skipped_and_changes_nothing(tiny_path, make_rollout):
    rows = build_rows([make_rollout([([3], [4])], 1.0), make_rollout([([3], [5])], 0.0)], RLOO)
    rows.advantages[0, 1] = float("inf")
    strategy = TorchStrategy(tiny_path, Optimization(precision="float32"))
    before = {name: tensor.clone() for name, tensor in strategy.named_tensors().items()}
    report = strategy.step(rows, RLOO, 1.0, None, None)
    assert "gradient norm" in report.skipped
    assert all(torch.equal(before[name], tensor) for name, tensor in strategy.named_tensors().items())


def test_a_step_makes_rewarded_tokens_likelier(tiny_path, make_rollout):
    rows = build_rows([make_rollout([([3], [4])], 1.0), make_rollout([([3], [5])], 0.0)], RLOO)
    strategy = TorchStrategy(tiny_path, Optimization(learning_rate=1e-3, precision="float32"))
    before = strategy.score(rows, 1.0)
    strategy.step(rows, RLOO, 1.0, None, None)
    after = strategy.score(rows, 1.0)
    assert after[0, 1] > before[0, 1]
    assert after[1, 1] < before[1, 1]


async def played(executor: type[Executor], tiny_path) -> list[Rollout]:
    """What an executor makes of the same task, with rewards of the rollouts' numbers."""
    async with started(prepare_agent(str(tiny_path), "transformers", options={"seed": 0}, executor=executor)) as agent:
        pool = RolloutPool(
            agent.executor, spec("guess_number"), config={"guesses": 1}, limits=Limits(max_turns=1, max_turn_tokens=4),
        )  # fmt: skip
        group = await pool.run_group(pool.tasks.get("train", 0, 0), 3, "one")
        await pool.close()
    for number, rollout in enumerate(group.rollouts):
        rollout.reward = float(number)
    return group.rollouts


async def test_the_executors_give_the_same_gradient_for_the_same_trajectories(tiny_path):
    once, several = [await played(executor, tiny_path) for executor in (SingleTurnExecutor, MultiTurnExecutor)]
    assert len(once) == len(several) == 3
    first, second = build_rows(once, RLOO), build_rows(several, RLOO)
    assert first.action_tokens > 3 and first.action_tokens == second.action_tokens
    found, expected = (gradient(tiny_path, rows, RLOO, 1000)[0] for rows in (first, second))
    assert all(torch.allclose(value, expected[name], atol=1e-6) for name, value in found.items())


def test_an_update_too_small_for_bfloat16_is_kept(tiny_path, make_rollout):
    rows = build_rows([make_rollout([([3], [4])], 1.0), make_rollout([([3], [5])], 0.0)], RLOO)
    strategy = TorchStrategy(tiny_path, Optimization(learning_rate=1e-6, precision="bfloat16"), device="cpu")
    before = {name: tensor.clone() for name, tensor in strategy.named_tensors().items()}
    assert not strategy.step(rows, RLOO, 1.0, None, None).skipped
    moved = rounded = 0
    for name, tensor in strategy.named_tensors().items():
        assert tensor.dtype == torch.float32
        changed = tensor != before[name]
        moved += int(changed.sum())
        rounded += int((tensor.bfloat16() != before[name].bfloat16())[changed].sum())
    assert moved > 1000 and rounded < moved / 4  # in bfloat16 most of them would have stayed where they were
