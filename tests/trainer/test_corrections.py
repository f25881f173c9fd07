"""Corrections for the engine's logprobs: bounds that can be set, the bypass form, and samples of a cut distribution."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from envhub.errors import UserError
from envhub.trainer.alarms import mismatch
from envhub.trainer.algorithms import CISPO, GMPO, GSPO, RLOO, Algorithm
from envhub.trainer.batch import Rows, build_rows
from envhub.trainer.config import resolve
from envhub.trainer.corrections import CORRECTIONS, Step
from envhub.trainer.metrics import read_metrics
from envhub.trainer.optimizer import Optimization
from envhub.trainer.plan import plan, sampling_of
from envhub.trainer.run import train
from envhub.trainer.strategy import MISMATCH, TorchStrategy

RATIOS = torch.tensor([[0.25, 1.0, 1.5, 4.0]])
MU = torch.full((1, 4), -2.0)
STEP = Step(MU + RATIOS.log(), MU + RATIOS.log(), MU, torch.full((1, 4), -1.0), torch.ones(1, 4))


def weights(name: str, **bounds: float) -> list[float]:
    algorithm = replace(RLOO, correction=name, **bounds)
    return [round(value, 4) for value in algorithm.corrected(torch.ones(1, 4), STEP)[0].tolist()]


@pytest.mark.parametrize(
    ("name", "bounds", "expected"),
    [
        ("none", {}, [1, 1, 1, 1]),
        ("bypass", {}, [1, 1, 1, 1]),
        ("tis", {}, [0.25, 1, 1.5, 2]),
        ("tis", {"correction_high": 1.2}, [0.25, 1, 1.2, 1.2]),
        ("mis", {}, [0.25, 1, 1.5, 0]),
        ("mis", {"correction_high": 5.0}, [0.25, 1, 1.5, 4]),
        ("icepop", {}, [0, 1, 1.5, 0]),
        ("icepop", {"correction_low": 0.2, "correction_high": 1.2}, [0.25, 1, 0, 0]),
        ("sequence_tis", {"correction_high": 1.2}, [1.2] * 4),  # the product is 1.5
        ("sequence_mis", {}, [1.5] * 4),
        ("sequence_mis", {"correction_high": 1.4}, [0] * 4),
        ("sequence_mask", {}, [0] * 4),  # the geometric mean is 1.1067
        ("sequence_mask", {"correction_high": 1.2}, [0.25, 1, 1.5, 4]),
        ("k3_mask", {}, [0] * 4),  # the mean k3 is (6.75 - 4 - log 1.5) / 4
        ("k3_mask", {"correction_high": 0.6}, [0.25, 1, 1.5, 4]),
        ("opsm", {}, [1] * 4),
    ],
)
def test_the_weights_of_a_row_by_hand(name, bounds, expected):
    assert weights(name, **bounds) == pytest.approx(expected)


def test_off_policy_masking_drops_bad_answers_that_the_policy_has_left_and_no_others():
    algorithm, gone = replace(RLOO, correction="opsm", correction_high=0.5), MU - 0.6
    bad = Step(gone, MU, MU, torch.full((1, 4), -1.0), torch.ones(1, 4))
    assert algorithm.corrected(torch.ones(1, 4), bad).tolist() == [[0, 0, 0, 0]]
    for spared in (replace(bad, advantages=-bad.advantages), replace(bad, logprobs=MU - 0.4)):
        assert algorithm.corrected(torch.ones(1, 4), spared).tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
@pytest.mark.parametrize("distance", [-50.0, 0.0, 50.0])
def test_no_correction_is_ever_nan_and_agreement_weighs_one(name, distance):
    new = (MU + distance).requires_grad_()
    for mask in (torch.ones(1, 4), torch.zeros(1, 4)):
        step = Step(new, new.detach(), MU, torch.full((1, 4), -1.0), mask)
        weighted = replace(RLOO, correction=name).corrected(torch.ones(1, 4), step)
        assert torch.isfinite(weighted).all() and not weighted.requires_grad
        assert distance or bool((weighted == 1).all())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"correction": "tis", "correction_low": 0.5}, "'tis' has no correction_low; leave it out"),
        ({"correction": "bypass", "correction_high": 2.0}, "'bypass' has no correction_high"),
        ({"correction": "none", "correction_high": 2.0}, "'none' has no correction_high"),
        (
            {"correction": "icepop", "correction_low": 3.0},
            "correction_low 3 is above correction_high 2, so every token",
        ),
        ({"correction": "bypas"}, "did you mean 'bypass'"),
    ],
)
def test_bounds_that_the_correction_has_not_are_refused(values, said):
    with pytest.raises(UserError, match=said):
        plan(resolve({"preset": "test", "env": "guess_number", **values}))


def gradient(path: Path, rows: Rows, algorithm: Algorithm, old: torch.Tensor | None = None):
    strategy = TorchStrategy(path, Optimization(precision="float32", clip_norm=0), device="cpu")
    kept: dict[str, torch.Tensor] = {}
    strategy.stepper.optimizers[0].step = lambda: kept.update(
        {name: p.grad.clone() for name, p in strategy.model.named_parameters()}
    )
    return kept, strategy.step(rows, algorithm, 1.0, old, None)


@pytest.fixture
def rows(make_rollout) -> Rows:
    made = build_rows([make_rollout([([3, 4], [5, 6])], 1.0), make_rollout([([3, 4], [7])], 0.0)], RLOO)
    made.behaviour = made.mask * -6.8  # the model is random: its logprobs are near -log 1024 = -6.93
    return made


@pytest.mark.parametrize("algorithm", [RLOO, CISPO, GSPO], ids=lambda a: a.name)
def test_the_bypass_is_the_loss_with_the_engines_logprobs_as_pi_old(tiny_path, rows, algorithm):
    bypassed, report = gradient(tiny_path, rows, replace(algorithm, correction="bypass"))
    expected, _ = gradient(tiny_path, rows, replace(algorithm, correction="none"), old=rows.behaviour)
    decoupled, _ = gradient(tiny_path, rows, replace(algorithm, correction="none"))
    assert all(torch.equal(value, expected[name]) for name, value in bypassed.items())
    assert any(not torch.allclose(value, decoupled[name], atol=1e-7) for name, value in bypassed.items())
    assert report.metrics["mismatch_k3"] > 0  # of the trainer's own logprobs, not of the loss's pi_old


def test_the_bypass_weighs_tokens_as_importance_sampling_does_by_hand(tiny_path, rows):
    strategy = TorchStrategy(tiny_path, Optimization(precision="float32"), device="cpu")
    scored = strategy.score(rows, 1.0)
    report = strategy.step(rows, replace(RLOO, correction="bypass"), 1.0, None, None)
    first, second, third = (math.exp(float(scored[at]) + 6.8) for at in ((0, 2), (0, 3), (1, 2)))
    # Good answers: -min(rho, 1.2) a token; the bad one: max(rho, 0.8). Sums over tokens, mean over the two rows.
    by_hand = (-min(first, 1.2) - min(second, 1.2) + max(third, 0.8)) / 2
    assert report.metrics["loss"] == pytest.approx(by_hand, abs=1e-5)
    assert report.metrics["importance"] == pytest.approx((first + second + third) / 3, abs=1e-5)


def test_the_bypass_is_the_decoupled_form_where_engine_and_trainer_agree(tiny_path, rows):
    strategy = TorchStrategy(tiny_path, Optimization(precision="float32"), device="cpu")
    rows.behaviour = strategy.score(rows, 1.0)
    bypassed, _ = gradient(tiny_path, rows, replace(RLOO, correction="bypass"))
    decoupled, _ = gradient(tiny_path, rows, RLOO)
    largest = max(float(value.abs().max()) for value in decoupled.values())
    assert all(torch.allclose(value, bypassed[n], atol=1e-5 * largest) for n, value in decoupled.items())


def test_a_report_of_a_later_update_compares_nothing_with_the_engine(tiny_path, rows):
    _, report = gradient(tiny_path, rows, replace(RLOO, correction="bypass"))
    assert set(MISMATCH) <= report.metrics.keys()
    later = report.without_mismatch()
    assert report.metrics.keys() - later.metrics.keys() == set(MISMATCH)
    assert mismatch(later.metrics) == ""


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 20}])
@pytest.mark.parametrize("correction", sorted(set(CORRECTIONS) - {"none"}))
def test_a_cut_distribution_is_refused_where_the_whole_is_compared(cut, correction):
    with pytest.raises(UserError, match=rf"top_. .* cuts .* {correction!r} compares .* \(top_p 1, top_k 0\), or set"):
        plan(resolve({"preset": "test", "env": "guess_number", "correction": correction, **cut}))


def test_a_cut_distribution_is_sampled_from_where_nothing_is_corrected():
    given = {"correction": "none", "top_p": 0.9, "top_k": 20, "eval_top_p": 1.0, "eval_temperature": 0.0}
    config = resolve({"preset": "test", "env": "guess_number", **given})
    plan(config)
    trained, evaluated = sampling_of(config), sampling_of(config, evaluation=True)
    assert (trained.top_p, trained.top_k, trained.temperature) == (0.9, 20, 1.0)
    assert (evaluated.top_p, evaluated.top_k, evaluated.temperature) == (1.0, 20, 0.0)


def test_the_alarm_does_not_blame_a_cut_that_was_asked_for():
    cut = {"mismatch_k3": 0.19, "importance": 0.5, "max_mismatch": 0.7, "effective_sample_size": 0.9}
    assert "top-p" in mismatch(cut)
    assert mismatch(cut, truncated=True) == ""
    assert "wiring" in mismatch({**cut, "importance": 1.5}, truncated=True)


def test_a_run_with_several_updates_compares_the_engine_with_its_first_only(tmp_path: Path):
    values = {"env": "guess_number", "max_turns": 1, "max_turn_tokens": 8, "steps": 1, "eval_tasks": 0}
    config = resolve(
        {"preset": "test", "algo": "reinforce", "correction": "bypass", "updates_per_step": 4, "learning_rate": 1e-2,
         "entropy_coef": 1.0, "tensorboard": False, "precision": "float32", "engine_options": {"dtype": "float32"},
         "output": tmp_path / "run", **values}
    )  # fmt: skip
    (row,) = read_metrics(asyncio.run(train(config)))
    assert 0 < row["max_mismatch"] < 1e-3  # later updates are of a policy that has moved by much more


def test_gmpo_has_a_bound_on_either_side():
    new, old, mask = torch.tensor([[0.5, -0.5]]).log_softmax(-1), torch.zeros(1, 2), torch.ones(1, 2)
    better, worse = torch.ones(1, 2), -torch.ones(1, 2)
    narrow = GMPO.with_options(clip_low=0.1)
    assert torch.equal(narrow.token_losses(new, old, better, mask), GMPO.token_losses(new, old, better, mask))
    assert (narrow.token_losses(new, old, worse, mask) > GMPO.token_losses(new, old, worse, mask)).all()
    fallen = old - 0.2  # within the usual bound of 0.4
    assert GMPO.clipped(fallen, old, worse, mask).sum() == 0 and narrow.clipped(fallen, old, worse, mask).sum() == 2
