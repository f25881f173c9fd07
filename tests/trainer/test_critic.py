"""The critic, credit by turns, and the parts of an optimizer step that PPO adds."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from envhub.errors import UserError
from envhub.messages import Action
from envhub.rollout import Turn
from envhub.trainer.algorithms import PPO, REINFORCE, RLOO, get_algorithm
from envhub.trainer.arithmetic import Arithmetic
from envhub.trainer.batch import assign, build_rows, token_rows
from envhub.trainer.critic import Critic, explained
from envhub.trainer.optimizer import Optimization, Stepper
from envhub.trainer.shaping import Shaping
from envhub.trainer.strategy import TorchStrategy

FAST = Optimization(learning_rate=3e-3, precision="float32", micro_tokens=64)


def scored(rows, value: float = 0.0):
    rows.values = value * rows.mask
    return rows


@pytest.fixture
def rollouts(make_rollout):
    return [make_rollout([([3, 4], [5 + i] * (i + 1)), ([9], [8])], float(i % 2), f"g{i}") for i in range(6)]


def test_a_critic_begins_at_zero_and_learns_the_returns(tiny_path: Path, rollouts):
    critic = Critic(tiny_path, FAST, Arithmetic("cpu", "float32"))
    rows = token_rows(rollouts)
    rows.values = critic.values(rows)
    assert rows.values.abs().max() == 0
    assign(rows, torch.tensor([rollout.reward for rollout in rollouts]), PPO)
    losses = [critic.step(rows, None)[0]["value_loss"] for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]
    assert explained(critic.values(rows), rows.returns, rows.mask) > 0.7


def test_no_partition_changes_a_step_of_the_critic(tiny_path: Path, rollouts):
    stepped = []
    for budget in (20, 100_000):
        critic = Critic(tiny_path, replace(FAST, micro_tokens=budget), Arithmetic("cpu", "float32"))
        rows = scored(token_rows(rollouts))
        assign(rows, torch.tensor([rollout.reward for rollout in rollouts]), PPO)
        critic.step(rows, 0.2)
        stepped.append(critic.values(rows))
    assert torch.allclose(*stepped, atol=1e-5)


def test_a_critic_that_knows_the_reward_leaves_no_advantage(make_rollout):
    rows = scored(token_rows([make_rollout([([3], [4, 5]), ([9], [6])], 1.0), make_rollout([([3], [7])], 1.0)]), 1.0)
    assign(rows, torch.tensor([1.0, 1.0]), replace(PPO, whiten=False))
    assert rows.advantages.abs().max() == 0
    assert torch.equal(rows.returns, rows.mask)


def test_lambda_decides_how_far_a_reward_reaches_back(make_rollout):
    rows = scored(token_rows([make_rollout([([3], [4, 5]), ([9], [6])], 1.0)]))
    assign(rows, torch.tensor([1.0]), replace(PPO, whiten=False, lam=0.5))
    assert rows.advantages[0].tolist() == [0, 0.25, 0.5, 0, 1]


def test_a_step_that_only_the_critic_takes_leaves_the_policy(tiny_path: Path, rollouts):
    strategy = TorchStrategy(tiny_path, FAST, critic=FAST, device="cpu")
    before = copy.deepcopy(strategy.model.state_dict())
    rows = token_rows(rollouts)
    rows.values = strategy.values(rows)
    assign(rows, torch.tensor([rollout.reward for rollout in rollouts]), PPO)
    report = strategy.step_critic(rows, PPO)
    assert not report.skipped and report.metrics["value_gradient_norm"] > 0
    assert all(torch.equal(value, before[name]) for name, value in strategy.model.state_dict().items())
    assert not strategy.step(rows, PPO, 1.0, None, None).skipped
    assert any(not torch.equal(value, before[name]) for name, value in strategy.model.state_dict().items())


def test_policy_critic_and_schedule_go_on_from_a_state_as_if_never_stopped(tiny_path: Path, rollouts, tmp_path: Path):
    options = replace(FAST, schedule="linear", warmup_steps=2, total_steps=6)

    def steps(strategy: TorchStrategy, count: int) -> None:
        for _ in range(count):
            rows = token_rows(rollouts)
            rows.values = strategy.values(rows)
            assign(rows, torch.tensor([rollout.reward for rollout in rollouts]), PPO)
            strategy.step_critic(rows, PPO)
            strategy.step(rows, PPO, 1.0, None, None)

    whole = TorchStrategy(tiny_path, options, critic=options, device="cpu")
    steps(whole, 4)
    half = TorchStrategy(tiny_path, options, critic=options, device="cpu")
    steps(half, 2)
    half.save_model(tmp_path / "model")
    torch.save(half.state(), tmp_path / "state.pt")
    other = TorchStrategy(tmp_path / "model", options, critic=options, device="cpu")
    other.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    steps(other, 2)
    for first, second in ((whole.model, other.model), (whole._critic().model, other._critic().model)):
        saved = second.state_dict()
        assert all(torch.equal(value, saved[name]) for name, value in first.state_dict().items())


def test_a_state_without_the_critic_is_refused(tiny_path: Path):
    plain, with_critic = (TorchStrategy(tiny_path, FAST, critic=critic, device="cpu") for critic in (None, FAST))
    with pytest.raises(ValueError, match="no critic"):
        with_critic.load_state(plain.state())
    with pytest.raises(ValueError, match="holds a critic"):
        plain.load_state(with_critic.state())
    state = with_critic.state()
    state["critic"]["model"].pop("head.weight")
    with pytest.raises(ValueError, match=r"head\.weight"):
        with_critic.load_state(state)


def test_a_refreshed_reference_is_the_policy_and_is_saved(tiny_path: Path, make_rollout):
    rows = build_rows([make_rollout([([3], [4])], 1.0), make_rollout([([3], [5])], 0.0)], RLOO)
    strategy = TorchStrategy(tiny_path, FAST, reference=tiny_path, device="cpu")
    assert "reference" not in strategy.state()
    strategy.step(rows, RLOO, 1.0, None, None)
    assert not torch.equal(strategy.score(rows, 1.0), strategy.score(rows, 1.0, reference=True))
    strategy.refresh_reference()
    moved = strategy.score(rows, 1.0, reference=True)
    assert torch.equal(strategy.score(rows, 1.0), moved)
    other = TorchStrategy(tiny_path, FAST, reference=tiny_path, device="cpu")
    other.load_state(strategy.state())
    assert torch.equal(other.score(rows, 1.0, reference=True), moved)


def test_the_rate_rises_from_the_first_step_and_falls_to_the_last():
    model = torch.nn.Linear(2, 2)
    stepper = Stepper(model, Optimization(learning_rate=1.0, schedule="linear", warmup_steps=2, total_steps=6))
    rates = []
    for _ in range(6):
        rates.append(stepper.learning_rate)
        model(torch.ones(1, 2)).sum().backward()
        stepper.take(1.0)
    assert rates == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize("options", [{"warmup_steps": 6, "total_steps": 6}, {"schedule": "saw", "total_steps": 3}])
def test_schedules_that_cannot_be_are_refused(options):
    with pytest.raises(UserError, match="schedule"):
        Stepper(torch.nn.Linear(2, 2), Optimization(**options))


def test_a_model_without_trained_parameters_is_refused():
    with pytest.raises(UserError, match="all are frozen"):
        Stepper(torch.nn.Linear(2, 2).requires_grad_(False), Optimization())


def test_muon_moves_the_matrices_of_the_layers_and_adamw_the_rest(tiny_path: Path, make_rollout):
    rows = build_rows([make_rollout([([3], [4])], 1.0), make_rollout([([3], [5])], 0.0)], RLOO)
    strategy = TorchStrategy(tiny_path, replace(FAST, optimizer="muon"), device="cpu")
    before = copy.deepcopy(strategy.model.state_dict())
    assert [type(optimizer).__name__ for optimizer in strategy.stepper.optimizers] == ["Muon", "AdamW"]
    assert not strategy.step(rows, RLOO, 1.0, None, None).skipped
    assert any(not torch.equal(value, before[name]) for name, value in strategy.model.state_dict().items())
    other = TorchStrategy(tiny_path, replace(FAST, optimizer="muon"), device="cpu")
    other.load_state(strategy.state())
    with pytest.raises(ValueError, match="moments of 1 optimizers"):
        TorchStrategy(tiny_path, FAST, device="cpu").load_state(strategy.state())


def test_an_entropy_bonus_raises_the_entropy(tiny_path: Path, make_rollout):
    rows = build_rows([make_rollout([([3], [4] * 8)], 1.0), make_rollout([([3], [5] * 8)], 1.0)], RLOO)
    seen = []
    for coefficient in (0.0, 1.0):
        strategy = TorchStrategy(tiny_path, FAST, device="cpu")
        algorithm = replace(RLOO, entropy_coef=coefficient)
        reports = [strategy.step(rows, algorithm, 1.0, None, None) for _ in range(3)]
        seen.append([report.metrics["entropy"] for report in reports])
    assert seen[0][2] == pytest.approx(seen[0][0], abs=1e-6)  # equal rewards teach nothing
    assert seen[1][2] > seen[1][0]


def turns_of(rollout, *rewards: float):
    rollout.turns = [Turn(Action("a"), reward=reward) for reward in rewards]
    rollout.reward = sum(rewards)
    return rollout


def test_a_turn_is_credited_with_what_is_rewarded_from_it_on(make_rollout):
    first = turns_of(make_rollout([([3], [4, 5]), ([9], [6])], 0), 1.0, 2.0)
    second = turns_of(make_rollout([([3], [7]), ([9], [8])], 0), 0.0, 4.0)
    algorithm = replace(REINFORCE, whiten=False, credit="turn", turn_gamma=0.5)
    rows = token_rows([first, second])
    assign(rows, Shaping().by_turn([first, second]), algorithm)
    assert rows.advantages[0].tolist() == [0, 2, 2, 0, 2]
    assert rows.advantages[1].tolist()[:4] == [0, 2, 0, 4]
    assign(rows, Shaping().by_turn([first, second]), replace(RLOO, credit="turn"))
    assert rows.advantages[0].tolist() == [0, -1, -1, 0, -2]
    assert rows.advantages[1].tolist()[:4] == [0, 1, 0, 2]


def test_a_turn_that_no_other_of_its_group_reached_is_compared_with_nothing(make_rollout):
    long = turns_of(make_rollout([([3], [4]), ([9], [6])], 0), 0.0, 2.0)
    short = turns_of(make_rollout([([3], [7])], 0), 1.0)
    rows = token_rows([long, short])
    assign(rows, Shaping().by_turn([long, short]), replace(RLOO, credit="turn"))
    assert rows.advantages[0].tolist() == [0, 1, 0, 0]
    assert rows.advantages[1].tolist()[:2] == [0, -1]


def test_a_critic_is_told_the_reward_of_each_turn(make_rollout):
    rollout = turns_of(make_rollout([([3], [4, 5]), ([9], [6])], 0), 1.0, 2.0)
    rows = scored(token_rows([rollout]))
    assign(rows, Shaping().by_turn([rollout]), replace(PPO, whiten=False, credit="turn", gamma=0.5))
    assert rows.advantages[0].tolist() == [0, 1.0, 2.0, 0, 2.0]


def test_a_forked_rollout_carries_later_turns_back_to_its_earlier_row(make_rollout):
    forked = make_rollout([([5, 6], [7, 8])], 0.0)
    leaf = forked.trajectory.fork(1, [5, 6, 99], turn=1, cause="template")
    forked.trajectory.add_sampled(leaf, list(forked.trajectory.path_ids(leaf)), [11], [-1.0], [0], turn=1)
    turns_of(forked, 1.0, 2.0)
    rows = scored(token_rows([forked]))
    for algorithm in (replace(PPO, whiten=False, credit="turn"), replace(REINFORCE, whiten=False, credit="turn")):
        assign(rows, Shaping().by_turn([forked]), algorithm)
        assert rows.advantages[rows.mask.bool()].tolist() == [3, 3, 2]


def test_what_is_no_turns_own_stands_at_the_last(make_rollout):
    rollout = turns_of(make_rollout([([3], [4]), ([9], [6])], 0), 3.0, 1.0)
    rollout.reward += 0.5  # of the whole group
    assert Shaping(scale=2.0).by_turn([rollout]).tolist() == [[6.0, 3.0]]
    assert Shaping(clip=2.0).by_turn([rollout]).tolist() == [[3.0, -1.0]]


def test_parts_that_do_not_go_together_are_refused():
    with pytest.raises(UserError, match="set credit to turn"):
        replace(RLOO, turn_gamma=0.5)
    with pytest.raises(UserError, match="use gamma"):
        replace(PPO, credit="turn", turn_gamma=0.5)
    with pytest.raises(UserError, match="lam is a finite number from 0 to 1"):
        replace(PPO, lam=1.5)
    assert get_algorithm("ppo").critic
