"""Golden values to 1e-6 in float64, and properties that they cannot show."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envhub.trainer import advantages, aggregation, corrections, kl, losses

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "algorithms.json").read_text())
INPUTS = {
    name: torch.tensor(value, dtype=torch.float64)
    for name, value in GOLDEN["inputs"].items()
    if isinstance(value, list)
}
MASK, REWARDS, GROUPS = INPUTS["mask"], INPUTS["rewards"], INPUTS["group"].long()
OLD, NEW, BEHAVIOUR, REFERENCE = (INPUTS[f"logp_{name}"] for name in ("old", "new", "behaviour", "ref"))


def near(value: torch.Tensor | float, expected: object) -> bool:
    found, known = (torch.as_tensor(item, dtype=torch.float64) for item in (value, expected))
    return torch.allclose(found, known, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("grpo: (r-mean)/(std+1e-6), unbiased std, singleton 0", advantages.grpo),
        ("dr_grpo: r-mean", advantages.centred),
        ("rloo: r - mean of the others, singleton 0", advantages.rloo),
    ],
)
def test_advantages_per_rollout(name, estimator):
    assert near(estimator(REWARDS, GROUPS), GOLDEN["advantages_per_rollout"][name])


def test_reinforce_baseline_whitens_over_action_tokens():
    name = "reinforce_baseline: group-centred, whitened over all action tokens, population variance"
    tokens = advantages.centred(REWARDS, GROUPS)[:, None].expand_as(MASK)
    assert near(advantages.whiten_tokens(tokens, MASK), GOLDEN["advantages_per_token"][name])


LENGTHS = MASK.sum(1)
VALUES_OLD, VALUES_NEW = INPUTS["values_old"], INPUTS["values_new"]
GAMMA, LAMBDA, KL_COEF = (GOLDEN["inputs"][name] for name in ("gamma", "lambda", "kl_coef"))
TERMINAL = advantages.at_last_action(REWARDS, MASK)
PENALISED = (TERMINAL - KL_COEF * kl.k1(OLD, REFERENCE)) * MASK
RETURNS = advantages.returns(PENALISED, MASK, GAMMA)
GAE = advantages.gae(TERMINAL, VALUES_OLD, MASK, GAMMA, LAMBDA)


def test_opo_has_the_length_weighted_baseline():
    name = "opo: r - sum(len*r)/sum(len)"
    assert near(advantages.opo(REWARDS, GROUPS, LENGTHS), GOLDEN["advantages_per_rollout"][name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (
            "reinforce_baseline: the same, unbiased variance",
            advantages.whiten_tokens(advantages.centred(REWARDS, GROUPS)[:, None].expand_as(MASK), MASK, unbiased=True),
        ),
        (
            "reinforce returns: terminal reward - kl_coef*k1(old||ref), gamma, observation tokens skipped",
            RETURNS,
        ),
        (
            "reinforce: those returns whitened, unbiased variance",
            advantages.whiten_tokens(RETURNS, MASK, unbiased=True),
        ),
        ("gae: unwhitened, observation tokens skipped", GAE),
        ("gae returns", (GAE + VALUES_OLD) * MASK),
        ("gae: whitened, unbiased variance", advantages.whiten_tokens(GAE, MASK, unbiased=True)),
    ],
)
def test_advantages_per_token(name, value):
    assert near(value, GOLDEN["advantages_per_token"][name])


def loss(weights: torch.Tensor, factor: torch.Tensor | float = 1.0, **options: float) -> torch.Tensor:
    centred = advantages.centred(REWARDS, GROUPS)[:, None]
    return (losses.ppo(NEW, OLD, centred, 0.2, 0.28, **options) * factor * weights).sum()


W = corrections.importance(OLD, BEHAVIOUR)
CENTRED = advantages.centred(REWARDS, GROUPS)[:, None]
BY_TOKEN, BY_SEQUENCE = aggregation.token_mean(MASK), aggregation.sequence_mean_token_mean(MASK)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ppo clip .2/.28, token mean", loss(aggregation.token_mean(MASK))),
        ("ppo, mean over sequences of token means", loss(aggregation.sequence_mean_token_mean(MASK))),
        ("ppo, mean over sequences of token sums", loss(aggregation.sequence_mean_token_sum(MASK))),
        ("ppo, dr_grpo constant length T", loss(aggregation.constant_length(MASK, MASK.shape[1]))),
        ("ppo with dual clip 1.2, token mean", loss(aggregation.token_mean(MASK), dual_clip=1.2)),
        ("ppo x tis (cap 2), token mean", loss(aggregation.token_mean(MASK), corrections.truncated(W))),
        (
            "ppo x icepop [.5,2], token mean over all action tokens",
            loss(aggregation.token_mean(MASK), corrections.icepop(W)),
        ),
        ("gspo .03/.04, sequence mean", (losses.gspo(NEW, OLD, CENTRED, MASK, 0.03, 0.04) * BY_SEQUENCE).sum()),
        ("gmpo .4 (log space), sequence mean", (losses.gmpo(NEW, OLD, CENTRED, MASK) * BY_SEQUENCE).sum()),
        ("sapo tau 1/1.05, sequence mean", (losses.sapo(NEW, OLD, CENTRED) * BY_SEQUENCE).sum()),
        ("cispo clip .2/.28, token mean", (losses.cispo(NEW, OLD, CENTRED) * BY_TOKEN).sum()),
        ("cispo upper cap 5 only, token mean", (losses.cispo(NEW, OLD, CENTRED, None, 4.0) * BY_TOKEN).sum()),
        (
            "value, clip .2, half of the max, token mean",
            (losses.value(VALUES_NEW, VALUES_OLD, GAE + VALUES_OLD) * BY_TOKEN).sum(),
        ),
    ],
)
def test_losses(name, value):
    assert near(value, GOLDEN["losses (advantages = dr_grpo)"][name])


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl(name):
    value = (kl.ESTIMATORS[name](NEW, REFERENCE) * aggregation.token_mean(MASK)).sum()
    assert near(value, GOLDEN["kl (new||ref), token mean"][name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("w = old/behaviour", W * MASK),
        ("tis cap 2", corrections.truncated(W) * MASK),
        ("icepop [.5,2]", corrections.icepop(W) * MASK),
        ("sequence product", corrections.sequence_log_weight(OLD, BEHAVIOUR, MASK).exp()[:, 0]),
        ("sequence geometric mean", corrections.sequence_log_weight(OLD, BEHAVIOUR, MASK, mean=True).exp()[:, 0]),
        ("mismatch k1 (behaviour||old)", (kl.k1(BEHAVIOUR, OLD) * BY_TOKEN).sum()),
        ("mismatch k3", (kl.k3(BEHAVIOUR, OLD) * BY_TOKEN).sum()),
        ("effective sample size of tis", corrections.effective_sample_size(corrections.truncated(W), MASK)),
    ],
)
def test_corrections(name, value):
    assert near(value, GOLDEN["corrections"][name])


rewards_and_groups = st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=24)


@given(rewards_and_groups, st.floats(-10, 10))
def test_a_constant_added_to_all_rewards_changes_no_advantage(pairs, shift):
    rewards = torch.tensor([r for r, _ in pairs], dtype=torch.float64)
    groups = torch.tensor([g for _, g in pairs])
    for estimator in (advantages.centred, advantages.rloo):
        assert torch.allclose(estimator(rewards, groups), estimator(rewards + shift, groups), atol=1e-9)


@given(rewards_and_groups)
def test_dr_grpo_is_rloo_times_n_minus_one_over_n(pairs):
    rewards = torch.tensor([r for r, _ in pairs], dtype=torch.float64)
    groups = torch.tensor([g for _, g in pairs])
    size = advantages.group_size(groups, torch.float64)
    assert torch.allclose(advantages.rloo(rewards, groups) * (size - 1) / size, advantages.centred(rewards, groups))


@given(rewards_and_groups)
def test_no_estimator_gives_nan_and_singletons_get_nothing(pairs):
    rewards = torch.tensor([r for r, _ in pairs], dtype=torch.float64)
    groups = torch.tensor([g for _, g in pairs])
    single = advantages.group_size(groups) == 1
    for estimator in (advantages.centred, advantages.grpo, advantages.rloo):
        values = estimator(rewards, groups)
        assert torch.isfinite(values).all()
        assert (values[single] == 0).all()


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_extreme_ratios_and_empty_rows_never_give_nan(differences, masked):
    old = torch.zeros(2, len(differences), dtype=torch.float64)
    new = torch.tensor([differences, differences], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([masked[: len(differences)], [False] * len(differences)], dtype=torch.float64)
    rows = torch.arange(2)
    for weigh in aggregation.AGGREGATIONS.values():
        for sign in (1.0, -1.0):
            total = (losses.ppo(new, old, torch.full_like(new, sign)) * weigh(mask, rows, rows, 8)).sum()
            (gradient,) = torch.autograd.grad(total, new)
            assert torch.isfinite(total) and torch.isfinite(gradient).all()
    assert torch.isfinite(advantages.whiten_tokens(new.detach(), mask)).all()


@given(st.integers(1, 6))
def test_on_policy_the_loss_is_minus_the_advantage_times_the_score(rows):
    new = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    values = torch.randn(rows, 1, dtype=torch.float64)
    mask = torch.ones(rows, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((losses.ppo(new, new.detach(), values) * aggregation.token_mean(mask)).sum(), new)
    assert torch.allclose(gradient, -values / mask.sum() * mask)


def test_inserted_observation_tokens_change_nothing():
    gap = torch.zeros(len(MASK), 3, dtype=torch.float64)
    wide = torch.cat([MASK[:, :2], gap, MASK[:, 2:]], 1)
    tokens = advantages.centred(REWARDS, GROUPS)[:, None]
    narrow_values = advantages.whiten_tokens(tokens.expand_as(MASK), MASK)
    wide_values = advantages.whiten_tokens(tokens.expand_as(wide), wide)
    assert torch.allclose(narrow_values, torch.cat([wide_values[:, :2], wide_values[:, 5:]], 1))


@pytest.mark.parametrize("divergence", [math.nan, math.inf, -math.inf])
def test_a_divergence_that_is_not_finite_moves_no_coefficient(divergence: float):
    assert kl.adapted(0.1, divergence, 0.01, 8, 100) == 0.1
    assert kl.adapted(0.1, 1.0, 0.01, 8, 100) > 0.1
