"""The critic of PPO: a value of the state before every action token, with an optimizer of its own."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envhub.trainer import losses
from envhub.trainer.arithmetic import Arithmetic
from envhub.trainer.batch import Rows
from envhub.trainer.decoder import Decoder, Prefix, passes, positions
from envhub.trainer.lora import Adapter
from envhub.trainer.model import load_model
from envhub.trainer.optimizer import Optimization, Stepper


class ValueModel(torch.nn.Module):
    """A causal language model whose output layer is one number: the value of what comes after each position."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder = model.get_decoder()
        self.states = Decoder(self.decoder)
        width = model.get_input_embeddings().weight.shape[1]
        self.head = torch.nn.Linear(width, 1, device=model.device)
        torch.nn.init.zeros_(self.head.weight)  # it begins with the value 0 everywhere, not with noise
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, token_ids: Tensor, lengths: Tensor, mask: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Values [rows, tokens] in float32 before each masked token, 0 elsewhere; shapes as those of `TokenScorer`."""
        rows, at = positions(mask)
        values: Tensor = self.head(self.states(token_ids, lengths, mask, prefix).float())[:, 0]
        return torch.zeros(token_ids.shape, device=token_ids.device).index_put((rows, at), values.float())


class Critic:
    """A value model that begins as the policy's folder, and its optimizer.

    With `options.lora` it has an adapter of its own, and its head is trained whole.
    """

    def __init__(self, model: Path, options: Optimization, arithmetic: Arithmetic) -> None:
        self.arithmetic, self.options = arithmetic, options
        loaded = load_model(model, str(arithmetic.device), gradient_checkpointing=options.gradient_checkpointing)
        if options.lora is not None:
            Adapter(loaded, options.lora, model)
        self.model = ValueModel(loaded).train()
        self.stepper = Stepper(self.model, options)

    def _forward(self, rows: Rows, prefix: Prefix | None) -> Tensor:
        ids, lengths, mask = (tensor.to(self.arithmetic.device) for tensor in (rows.token_ids, rows.lengths, rows.mask))
        with self.arithmetic.mixed():
            values: Tensor = self.model(ids, lengths, mask, prefix)
        return values

    @torch.no_grad()
    def values(self, rows: Rows) -> Tensor:
        """The values [rows, tokens] before each action token, without gradient."""
        out = torch.zeros(rows.token_ids.shape)
        for part, prefix in passes(self.model.states, rows.numbered(), self.options.micro_tokens, self.arithmetic):
            found = self._forward(part, prefix)
            out[part.owner, : found.shape[1]] = found.cpu()
        return out

    def step(self, rows: Rows, clip: float | None) -> tuple[dict[str, float], str]:
        """One optimizer step towards `rows.returns`, averaged over action tokens; `rows.values` are those before it.

        Returns metrics, and why no step was taken (empty when it was).
        """
        self.stepper.zero()
        device, total, bound = self.arithmetic.device, 0.0, 0.0
        count = max(1, rows.action_tokens)
        for part, prefix in passes(self.model.states, rows, self.options.micro_tokens, self.arithmetic):
            mask, old, returns = (tensor.to(device) for tensor in (part.mask, part.values, part.returns))
            values = self._forward(part, prefix)
            loss = (losses.value(values, old, returns, clip) * mask).sum() / count
            torch.autograd.backward(loss)
            total += float(loss.detach())
            if clip is not None:
                bound += float((((values - old).abs() > clip) * mask).sum())
            self.arithmetic.give_back()
        norm, skipped = self.stepper.take(total)
        metrics = {
            "value_loss": total, "value_gradient_norm": norm, "value_clipped": bound / count,
            "value_explained": explained(rows.values, rows.returns, rows.mask),
        }  # fmt: skip
        return metrics, skipped

    def state(self) -> dict[str, Any]:
        """Weights and optimizer, for a checkpoint. Beside an adapter, the weights that never change are left out."""
        return {"model": self._own_weights(), "stepper": self.stepper.state()}

    def _own_weights(self) -> dict[str, Tensor]:
        weights = self.model.state_dict()
        if self.options.lora is None:
            return weights
        trained = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        return {name: weights[name] for name in trained}

    def load_state(self, saved: Any) -> None:
        """Take up a saved state. Raises ValueError where it does not fit."""
        if not isinstance(saved, dict) or not {"model", "stepper"} <= saved.keys():
            raise ValueError("critic: it has no model and stepper")
        try:
            lacking = [name for name in self._own_weights() if name not in saved["model"]]
            if lacking:
                raise ValueError(f"critic: it lacks {lacking[0]}")
            self.model.load_state_dict(saved["model"], strict=self.options.lora is None)
        except (RuntimeError, TypeError, AttributeError) as problem:
            raise ValueError(f"critic: {problem}") from problem
        self.stepper.load_state(saved["stepper"])


def explained(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(R - V) / Var(R) over action tokens: 1 for a perfect critic, 0 for a constant; 0 where R has no variance."""
    chosen = mask.bool()
    variance = float(returns[chosen].var(unbiased=False)) if chosen.any() else 0.0
    if variance == 0.0:
        return 0.0
    return 1.0 - float((returns - values)[chosen].var(unbiased=False)) / variance
