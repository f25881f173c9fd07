"""The trainer's model: loading, and logprobs of action tokens without a whole [tokens, vocabulary] matrix."""

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from envhub.agents.engines.loading import load_causal_model
from envhub.agents.engines.precision import choose_device, fast_dtype

CHUNK = 1024  # positions whose logits exist at one time


class Arithmetic:
    """Where models compute, and in which precision: `auto`, `float32` or `bfloat16` (autocast)."""

    def __init__(self, device: str = "auto", precision: str = "auto") -> None:
        self.device = torch.device(choose_device(device))
        if precision == "auto":  # float16 would need its gradients scaled
            precision = "bfloat16" if fast_dtype(self.device.type) == "bfloat16" else "float32"
        self.precision = precision

    def mixed(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which a model runs."""
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def attention_of(token_ids: Tensor, lengths: Tensor) -> Tensor:
    """The attention mask [rows, tokens] of rows that are padded at the right."""
    columns = torch.arange(token_ids.shape[1], device=token_ids.device)
    return (columns[None] < lengths[:, None]).long()


def positions(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every masked token but those in the first column, which follow nothing."""
    chosen = mask.bool().clone()
    chosen[:, 0] = False
    rows, at = chosen.nonzero(as_tuple=True)
    return rows, at


def load_model(path: Path, device: str, *, gradient_checkpointing: bool = False) -> Any:
    """The model of a folder, its parameters in float32. Raises UserError when it cannot be loaded."""
    model = load_causal_model(str(path), torch.float32, device)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # the engine samples without dropout, so logprobs are compared without it
    if gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


class TokenScorer:
    """Logprobs and entropies of a causal language model at chosen tokens.

    Where the model's logits are its output layer applied to the decoder's hidden states (probed once), the output layer
    is applied to action positions only, in chunks that are computed again for the gradient. Other models (which scale
    or cap their logits) go through their whole forward pass.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.splits = self._probe()

    @torch.no_grad()
    def _probe(self) -> bool:
        head = self.model.get_output_embeddings()
        if head is None:
            return False
        ids = torch.arange(1, 9, device=self.model.device)[None]
        was_training = self.model.training
        self.model.eval()
        try:
            whole = self.model(input_ids=ids).logits
            parts = head(self._decoder(ids, torch.ones_like(ids)))
        finally:
            self.model.train(was_training)
        return bool(torch.allclose(whole, parts, atol=1e-4, rtol=1e-4))

    def _decoder(self, token_ids: Tensor, attention: Tensor) -> Tensor:
        out = self.model.get_decoder()(input_ids=token_ids, attention_mask=attention, use_cache=False)
        hidden: Tensor = out.last_hidden_state
        return hidden

    def __call__(
        self,
        token_ids: Tensor,
        lengths: Tensor,
        mask: Tensor,
        temperature: float = 1.0,
        *,
        trains_entropy: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies [rows, tokens] in float32 at masked tokens, 0 elsewhere.

        Position t holds the logprob of token t given those before it. `token_ids`, `mask` [rows, tokens] are padded at
        the right; `lengths` [rows]. Entropies are detached unless `trains_entropy`.
        """
        attention = attention_of(token_ids, lengths)
        rows, at = positions(mask)
        targets = token_ids[rows, at]
        if self.splits:
            hidden = self._decoder(token_ids, attention)[rows, at - 1]
            head = self.model.get_output_embeddings()
            parts = [
                checkpoint(
                    _score,
                    head,
                    hidden[i : i + CHUNK],
                    targets[i : i + CHUNK],
                    temperature,
                    trains_entropy,
                    use_reentrant=False,
                )
                for i in range(0, len(targets), CHUNK)
            ]
        else:
            logits = self.model(input_ids=token_ids, attention_mask=attention, use_cache=False).logits
            parts = [_logprobs(logits[rows, at - 1], targets, temperature, trains_entropy)]
        out = torch.zeros(token_ids.shape, dtype=torch.float32, device=token_ids.device)
        entropy = torch.zeros_like(out)
        if parts:
            out = out.index_put((rows, at), torch.cat([part[0] for part in parts]))
            entropy = entropy.index_put((rows, at), torch.cat([part[1] for part in parts]))
        return out, entropy


def _score(
    head: Any, hidden: Tensor, targets: Tensor, temperature: float, trains_entropy: bool
) -> tuple[Tensor, Tensor]:
    return _logprobs(head(hidden), targets, temperature, trains_entropy)


def _logprobs(logits: Tensor, targets: Tensor, temperature: float, trains_entropy: bool) -> tuple[Tensor, Tensor]:
    everything = (logits.float() / temperature).log_softmax(-1)
    chosen = everything.gather(-1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(trains_entropy and torch.is_grad_enabled()):
        entropy = -(everything.exp() * everything).sum(-1)
    return chosen, entropy
