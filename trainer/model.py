"""The trainer's model: loading, and logprobs of action tokens without a whole [tokens, vocabulary] matrix."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from envhub.agents.engines.loading import load_causal_model
from envhub.trainer.decoder import Decoder, Prefix, attention_of, positions

_CHUNK = 1024  # positions whose logits exist at one time
_CPU_CHUNK = 256


def chunks(count: int, device: torch.device) -> list[slice]:
    """The parts of `count` positions whose logits may exist at one time."""
    size = _CPU_CHUNK if device.type == "cpu" else _CHUNK
    return [slice(start, start + size) for start in range(0, count, size)]


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
        self.decoder = Decoder(model.get_decoder())
        self.splits = self._probe()
        self.decoder.shares = self.splits and self.decoder.shares

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
            parts = head(self.decoder.whole(ids, torch.tensor([ids.shape[1]], device=ids.device)))
        finally:
            self.model.train(was_training)
        return bool(torch.allclose(whole, parts, atol=1e-4, rtol=1e-4))

    def __call__(
        self,
        token_ids: Tensor,
        lengths: Tensor,
        mask: Tensor,
        temperature: float = 1.0,
        *,
        prefix: Prefix | None = None,
        trains_entropy: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies [rows, tokens] in float32 at masked tokens, 0 elsewhere.

        Position t holds the logprob of token t given those before it. `token_ids`, `mask` [rows, tokens] are padded at
        the right; `lengths` [rows]. With a `prefix` (where the decoder shares) only what comes after it is computed. Entropies are
        detached unless `trains_entropy`.
        """
        rows, at = positions(mask)
        targets = token_ids[rows, at]
        if self.splits:
            hidden = self.decoder(token_ids, lengths, mask, prefix)
            head = self.model.get_output_embeddings()
            parts = [
                checkpoint(_score, head, hidden[part], targets[part], temperature, trains_entropy, use_reentrant=False)
                for part in chunks(len(targets), token_ids.device)
            ]
        else:
            attention = attention_of(token_ids, lengths)
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
