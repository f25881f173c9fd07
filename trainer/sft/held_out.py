"""How well a model predicts held-out samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from envhub.trainer.batch import Rows, micro_batches
from envhub.trainer.decoder import attention_of, positions
from envhub.trainer.model import TokenScorer, chunks
from envhub.trainer.sft.examples import Example, rows_of
from envhub.trainer.strategy import Strategy, TorchStrategy

_AT_ONCE = 64  # examples that are padded to one width


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Mean negative log-likelihood in nats a trained token, and the share of them that is the model's first choice.

    `accuracy` is None where the strategy does not hold the model in this process.
    """

    nll: float
    accuracy: float | None
    tokens: int

    def __str__(self) -> str:
        right = "" if self.accuracy is None else f", token accuracy {self.accuracy:.1%}"
        return f"NLL {self.nll:.4f}{right} over {self.tokens} tokens"


def score(strategy: Strategy, examples: Sequence[Example], micro_tokens: int) -> HeldOut:
    """Score the trained tokens of examples (at least one)."""
    order = sorted(examples, key=lambda example: len(example.token_ids))
    predictor = _Predictor(strategy.model) if isinstance(strategy, TorchStrategy) else None
    total, right, tokens = 0.0, 0, 0
    for start in range(0, len(order), _AT_ONCE):
        rows = rows_of(order[start : start + _AT_ONCE])
        total -= float(strategy.score(rows, 1.0).double().sum())
        tokens += rows.action_tokens
        if predictor is not None and isinstance(strategy, TorchStrategy):
            right += _right(predictor, strategy, rows, micro_tokens)
    return HeldOut(total / tokens, None if predictor is None else right / tokens, tokens)


class _Predictor(TokenScorer):
    """Which token the model would choose first."""

    @torch.no_grad()
    def right(self, token_ids: Tensor, lengths: Tensor, mask: Tensor) -> int:
        """How many masked tokens are the first choice; shapes as in `TokenScorer`."""
        rows, at = positions(mask)
        targets = token_ids[rows, at]
        if not self.splits:
            attention = attention_of(token_ids, lengths)
            logits = self.model(input_ids=token_ids, attention_mask=attention, use_cache=False).logits
            return int((logits[rows, at - 1].argmax(-1) == targets).sum())
        hidden, head = self.decoder(token_ids, lengths, mask), self.model.get_output_embeddings()
        parts = chunks(len(targets), targets.device)
        return sum(int((head(hidden[part]).argmax(-1) == targets[part]).sum()) for part in parts)


def _right(predictor: _Predictor, strategy: TorchStrategy, rows: Rows, micro_tokens: int) -> int:
    count = 0
    for part in micro_batches(rows, micro_tokens):
        ids, lengths, mask = (tensor.to(strategy.device) for tensor in (part.token_ids, part.lengths, part.mask))
        with strategy.arithmetic.mixed():
            count += predictor.right(ids, lengths, mask)
    return count
