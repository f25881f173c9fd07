"""The trainer's strategy on CUDA, held against the same on the CPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from envhub.trainer.algorithms import GRPO
from envhub.trainer.optimizer import Optimization
from envhub.trainer.strategy import StepReport, TorchStrategy

from .samples import TEMPERATURE, fixed_rows

pytestmark = pytest.mark.gpu

OPTIONS = Optimization(learning_rate=1e-3, precision="float32", micro_tokens=64)
ALGORITHM = GRPO.with_options(kl_coef=0.1)


def step_on(device: str, path: Path, options: Optimization = OPTIONS) -> tuple[TorchStrategy, StepReport]:
    """One step with an old policy and a reference that both differ a little from the policy."""
    strategy = TorchStrategy(path, options, reference=path, device=device)
    rows = fixed_rows()
    old = strategy.score(rows, TEMPERATURE) - 0.05 * rows.mask
    reference = strategy.score(rows, TEMPERATURE, reference=True) + 0.05 * rows.mask
    return strategy, strategy.step(rows, ALGORITHM, TEMPERATURE, old, reference)


def test_a_step_has_the_loss_and_the_gradient_that_it_has_on_the_cpu(cuda: str, tiny_path: Path) -> None:
    (strategy, there), (_, here) = step_on(cuda, tiny_path), step_on("cpu", tiny_path)
    assert not there.skipped
    assert there.metrics.keys() == here.metrics.keys()
    assert there.metrics["loss"] == pytest.approx(here.metrics["loss"], abs=1e-3)
    assert there.metrics["gradient_norm"] == pytest.approx(here.metrics["gradient_norm"], rel=1e-2)
    assert there.metrics["kl"] == pytest.approx(here.metrics["kl"], abs=1e-3)
    assert all(parameter.device.type == torch.device(cuda).type for parameter in strategy.model.parameters())


def test_a_step_moves_the_weights_and_scores_come_back_to_the_cpu(cuda: str, tiny_path: Path) -> None:
    strategy = TorchStrategy(tiny_path, OPTIONS, device=cuda)
    rows = fixed_rows()
    before = strategy.score(rows, TEMPERATURE)
    assert not strategy.step(rows, GRPO, TEMPERATURE, None, None).skipped
    after = strategy.score(rows, TEMPERATURE)
    assert before.device.type == after.device.type == "cpu"
    better = ((after - before) * rows.advantages).sum()
    assert better > 0


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        (replace(OPTIONS, precision="bfloat16"), 2e-2),
        (replace(OPTIONS, precision="auto"), 2e-2),
        (replace(OPTIONS, gradient_checkpointing=True), 1e-4),
        (replace(OPTIONS, micro_tokens=100_000), 1e-4),
    ],
)
def test_ways_of_computing_a_step_agree(cuda: str, tiny_path: Path, options: Optimization, tolerance: float) -> None:
    (_, plain), (strategy, other) = step_on(cuda, tiny_path), step_on(cuda, tiny_path, options)
    assert not other.skipped
    assert other.metrics["loss"] == pytest.approx(plain.metrics["loss"], abs=tolerance)
    assert {tensor.dtype for tensor in strategy.named_tensors().values()} == {torch.float32}


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_a_state_is_taken_up_on_either_device(cuda: str, tiny_path: Path, tmp_path: Path, target: str) -> None:
    first, _ = step_on(cuda, tiny_path)
    torch.save(first.state(), tmp_path / "state.pt")
    first.save_model(tmp_path / "model")
    drawn = torch.rand(3, device=cuda)
    device = cuda if target == "cuda" else "cpu"
    second = TorchStrategy(tmp_path / "model", OPTIONS, device=device)
    second.load_state(torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=True))
    if target == "cuda":
        assert torch.equal(torch.rand(3, device=cuda), drawn)
    rows = fixed_rows()
    losses = [s.step(rows, GRPO, TEMPERATURE, None, None).metrics["loss"] for s in (first, second)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    scores = [s.score(rows, TEMPERATURE) for s in (first, second)]
    assert float((scores[0] - scores[1]).abs().max()) < 5e-2
