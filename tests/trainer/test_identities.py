"""Identities between formulas that golden values cannot show, on random and on extreme inputs."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envhub import plugins
from envhub.trainer import advantages, aggregation, corrections, kl, losses
from envhub.trainer.algorithms import get_algorithm
from envhub.trainer.batch import Rows, assign

LOSSES = {
    "ppo": lambda new, old, values, mask: losses.ppo(new, old, values),
    "dual_clip": lambda new, old, values, mask: losses.ppo(new, old, values, dual_clip=3.0),
    "gspo": losses.gspo,
    "gmpo": losses.gmpo,
    "cispo": lambda new, old, values, mask: losses.cispo(new, old, values),
    "sapo": lambda new, old, values, mask: losses.sapo(new, old, values),
}


def weigh(name: str, mask: torch.Tensor) -> torch.Tensor:
    """The weights of rows of one rollout each, two of a group."""
    rows = torch.arange(len(mask))
    return aggregation.AGGREGATIONS[name](mask, rows, rows // 2, 7)


def gradient_of(loss: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(loss, at)
    return gradient


@st.composite
def batches(draw: st.DrawFn, most: float = 3.0):
    """Logprobs, old logprobs, advantages [rows, 1] and a mask with gaps and empty rows, all [rows, tokens]."""
    rows, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = (torch.rand(rows, tokens, generator=generator) < 0.7).double()
    scale = draw(st.floats(0, most))
    new = noise(rows, tokens) * scale
    return new.requires_grad_(), (new.detach() + noise(rows, tokens) * scale), noise(rows, 1), mask


@given(batches(), st.sampled_from(sorted(LOSSES)))
def test_on_policy_every_loss_has_the_score_functions_gradient(batch, name):
    new, _, values, mask = batch
    weights = aggregation.sequence_mean_token_mean(mask)
    loss = (LOSSES[name](new, new.detach(), values, mask) * weights).sum()
    assert torch.allclose(gradient_of(loss, new), -values * weights, atol=1e-12)


@given(batches(most=50.0), st.sampled_from(sorted(LOSSES)), st.sampled_from(sorted(aggregation.AGGREGATIONS)))
def test_nothing_is_ever_nan(batch, name, aggregate):
    new, old, values, mask = batch
    loss = (LOSSES[name](new, old, values, mask) * weigh(aggregate, mask)).sum()
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient_of(loss, new)).all()
    for tensor in (
        corrections.sequence_truncated(old, new, mask),
        corrections.sequence_masked(old, new, mask),
        corrections.icepop(corrections.importance(old, new)),
        kl.k3_unbiased(new, old),
    ):
        assert torch.isfinite(tensor).all()


@given(batches())
def test_gspo_by_token_is_gspo_by_sequence(batch):
    new, old, values, mask = batch
    weights = aggregation.sequence_mean_token_mean(mask)
    whole = gradient_of((losses.gspo(new, old, values, mask, 0.3, 0.4) * weights).sum(), new)
    ratio = losses.sequence_log_ratio(new, old, mask).exp().detach()
    by_token = ratio * (new - new.detach()).exp()
    clipped = by_token.clamp(0.7, 1.4)
    loss = ((-values * by_token).maximum(-values * clipped) * weights).sum()
    assert torch.allclose(whole, gradient_of(loss, new), atol=1e-12)


@given(batches())
def test_weights_are_one_where_engine_and_trainer_agree(batch):
    new, old, values, mask = batch
    for weight in (
        corrections.importance(old, old),
        corrections.truncated(corrections.importance(old, old)),
        corrections.icepop(corrections.importance(old, old)),
        corrections.sequence_truncated(old, old, mask),
        corrections.sequence_masked(old, old, mask),
    ):
        assert torch.equal(weight, torch.ones_like(mask))


@given(batches(), st.integers(0, 3), st.floats(0.5, 1), st.floats(0, 1))
def test_inserted_observations_change_neither_returns_nor_gae(batch, gap, gamma, lam):
    rewards, values, _, mask = batch
    rewards = rewards.detach() * mask
    narrow = advantages.gae(rewards, values, mask, gamma, lam)

    def widen(tensor: torch.Tensor, fill: float) -> torch.Tensor:
        return torch.cat([tensor[:, :1], torch.full((len(tensor), gap), fill, dtype=tensor.dtype), tensor[:, 1:]], 1)

    wide = advantages.gae(widen(rewards, 0), widen(values, 9.0), widen(mask, 0), gamma, lam)
    assert torch.allclose(widen(narrow, 0), wide)
    narrow, wide = (
        advantages.returns(rewards, mask, gamma),
        advantages.returns(widen(rewards, 0), widen(mask, 0), gamma),
    )
    assert torch.allclose(widen(narrow, 0), wide)


@given(batches())
def test_undiscounted_gae_is_the_reward_to_go_minus_the_value(batch):
    rewards, values, _, mask = batch
    rewards = rewards.detach() * mask
    to_go = rewards.flip(1).cumsum(1).flip(1)
    assert torch.allclose(advantages.gae(rewards, values, mask), (to_go - values) * mask)
    last = advantages.at_last_action(torch.ones(len(mask), dtype=mask.dtype), mask)
    assert torch.equal(last.sum(1), (mask.sum(1) > 0).to(last.dtype))
    assert torch.equal(last * mask, last)


def test_gae_of_many_rows_is_that_of_each_by_itself():
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(40_000, 3, generator=generator) for _ in range(2))
    mask = (torch.rand(40_000, 3, generator=generator) < 0.7).float()
    found = advantages.gae(rewards, values, mask, 0.9, 0.8)
    for part in (slice(0, 5), slice(16_380, 16_390), slice(39_995, 40_000)):
        assert torch.equal(found[part], advantages.gae(rewards[part], values[part], mask[part], 0.9, 0.8))


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 2)), min_size=2, max_size=12), st.floats(0.1, 10))
def test_grpo_does_not_see_the_scale_of_rewards(pairs, scale):
    rewards = torch.tensor([r for r, _ in pairs], dtype=torch.float64)
    groups = torch.tensor([g for _, g in pairs])
    spread = advantages.group_sum(advantages.centred(rewards, groups) ** 2, groups) > 1e-3
    same = advantages.grpo(rewards, groups, 0.0)[spread], advantages.grpo(rewards * scale, groups, 0.0)[spread]
    assert torch.allclose(*same, atol=1e-9)


POLICY = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64).log()
REFERENCE = torch.tensor([0.3, 0.1, 0.1, 0.2, 0.3], dtype=torch.float64).log()


def forward_kl(logits: torch.Tensor) -> torch.Tensor:
    """KL(ref || pi)."""
    return (REFERENCE.exp() * (REFERENCE - logits.log_softmax(0))).sum()


def reverse_kl(logits: torch.Tensor) -> torch.Tensor:
    """KL(pi || ref)."""
    logprobs = logits.log_softmax(0)
    return (logprobs.exp() * (logprobs - REFERENCE)).sum()


@pytest.mark.parametrize(
    ("name", "target"),
    [("k1", lambda logits: 0 * logits.sum()), ("k2", reverse_kl), ("k3", forward_kl), ("k3_unbiased", reverse_kl)],
)
def test_the_gradient_of_a_kl_estimate_by_enumeration(name, target):
    logits = POLICY.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    expected_loss = (logprobs.exp().detach() * kl.ESTIMATORS[name](logprobs, REFERENCE)).sum()
    assert torch.allclose(gradient_of(expected_loss, logits), gradient_of(target(logits), logits), atol=1e-12)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_a_kl_estimate_is_unbiased(name):
    expectation = (POLICY.exp() * kl.ESTIMATORS[name](POLICY, REFERENCE)).sum()
    assert torch.allclose(expectation, reverse_kl(POLICY))


@pytest.mark.parametrize(("estimator", "factor"), [(advantages.rloo, 1.0), (advantages.centred, 2 / 3)])
def test_the_score_function_is_unbiased_on_a_bandit_by_enumeration(estimator, factor):
    rewards, size = torch.tensor([1.0, 0.0, -0.5, 2.0, 0.3], dtype=torch.float64), 3
    logits = POLICY.clone().requires_grad_()
    logprobs = logits.log_softmax(0)
    truth = torch.autograd.grad((logprobs.exp() * rewards).sum(), logits, retain_graph=True)[0]
    total = torch.zeros((), dtype=torch.float64)
    for arms in itertools.product(range(5), repeat=size):
        chosen = logprobs[list(arms)]
        values = estimator(rewards[list(arms)], torch.zeros(size, dtype=torch.long))
        total = total + chosen.sum().exp().detach() * losses.ppo(chosen, chosen.detach(), values).mean()
    assert torch.allclose(-gradient_of(total, logits), truth * factor)


@settings(max_examples=30)
@given(batches(), st.randoms(use_true_random=False))
def test_rows_may_come_in_any_order_and_padding_counts_nothing(batch, rng):
    new, old, values, mask = batch
    order = list(range(len(mask)))
    rng.shuffle(order)
    rows = torch.arange(len(mask))
    for aggregate in aggregation.AGGREGATIONS.values():
        whole = gradient_of((losses.ppo(new, old, values) * aggregate(mask, rows, rows // 2, 7)).sum(), new)
        other = new.detach()[order].requires_grad_()
        padded = torch.cat([mask[order], torch.zeros(len(mask), 2, dtype=mask.dtype)], 1)
        moved = rows[order]
        weights = aggregate(padded, moved, moved // 2, 7)[:, : mask.shape[1]]
        again = gradient_of((losses.ppo(other, old[order], values[order]) * weights).sum(), other)
        assert torch.allclose(whole[order], again)


@given(batches())
def test_a_rollout_split_into_rows_has_the_same_gradient_under_the_token_mean(batch):
    new, old, values, mask = batch
    half = torch.zeros_like(mask)
    half[:, : mask.shape[1] // 2] = 1
    split = torch.cat([mask * half, mask * (1 - half)])
    whole = gradient_of((losses.ppo(new, old, values) * aggregation.token_mean(mask)).sum(), new)
    twice = (losses.ppo(new, old, values).repeat(2, 1) * aggregation.token_mean(split)).sum()
    assert torch.allclose(whole, gradient_of(twice, new))


@st.composite
def token_rows(draw: st.DrawFn):
    """Rows of a step: gaps, rows without any action token, groups of one, equal rewards, log-ratios of up to ±50."""
    count, width = draw(st.integers(1, 6)), draw(st.integers(1, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    mask = (torch.rand(count, width, generator=generator) < draw(st.sampled_from([0.0, 0.3, 0.9]))).float()
    owners = draw(st.integers(1, count))
    owner = torch.arange(count) % owners
    groups = torch.tensor(draw(st.lists(st.integers(0, 2), min_size=owners, max_size=owners)))
    behaviour = torch.randn(count, width, generator=generator) * mask
    turns = (torch.arange(width) // draw(st.integers(1, 3))).expand(count, -1).clone()
    ids, lengths = torch.zeros(count, width, dtype=torch.long), torch.full((count,), width)
    made = Rows.bare(ids, mask, behaviour, lengths, owner=owner, rollout_groups=groups, turns=turns)
    made.values = torch.randn(count, width, generator=generator) * mask
    rewards = torch.tensor(draw(st.lists(st.sampled_from([0.0, 1.0, -1e6]), min_size=owners, max_size=owners)))
    spread = torch.rand(count, width, generator=generator) * 100 - 50
    return made, rewards, spread


@settings(max_examples=100)
@given(
    token_rows(),
    st.sampled_from(sorted(plugins.names(plugins.ALGORITHMS))),
    st.sampled_from(sorted(aggregation.AGGREGATIONS)),
    st.sampled_from(["episode", "turn"]),
    st.sampled_from(sorted(corrections.CORRECTIONS)),
)
def test_no_algorithm_makes_nan_of_a_step(step, name, aggregate, credit, correction):
    rows, rewards, spread = step
    algorithm = get_algorithm(name).with_options(
        aggregation=aggregate, length=7, credit=credit, correction=correction, kl_coef=0.1
    )
    given_rewards = torch.stack([rewards, -rewards], 1) if credit == "turn" else rewards
    assign(rows, given_rewards, algorithm, divergence=spread)
    for tensor in (rows.advantages, rows.returns, rows.weights):
        assert torch.isfinite(tensor).all()
        assert (tensor[rows.mask == 0] == 0).all()
    new = (rows.behaviour + spread * rows.mask).requires_grad_()
    old = rows.behaviour if algorithm.bypass else (rows.behaviour - spread * rows.mask / 2)
    seen = corrections.Step(new, old, rows.behaviour, rows.advantages, rows.mask)
    losses_of_tokens = algorithm.corrected(algorithm.token_losses(new, old, rows.advantages, rows.mask), seen)
    loss = (losses_of_tokens * rows.weights).sum()
    assert torch.isfinite(loss) and torch.isfinite(gradient_of(loss, new)).all()
    assert torch.isfinite(algorithm.clipped(new, old, rows.advantages, rows.mask)).all()
