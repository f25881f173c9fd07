"""How well a model predicts held-out samples, and the curve of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envhub.trainer.batch import Rows, micro_batches
from envhub.trainer.decoder import attention_of, positions
from envhub.trainer.model import CHUNK, TokenScorer
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
        parts = [slice(start, start + CHUNK) for start in range(0, len(targets), CHUNK)]
        return sum(int((head(hidden[part]).argmax(-1) == targets[part]).sum()) for part in parts)


def _right(predictor: _Predictor, strategy: TorchStrategy, rows: Rows, micro_tokens: int) -> int:
    count = 0
    for part in micro_batches(rows, micro_tokens):
        ids, lengths, mask = (tensor.to(strategy.device) for tensor in (part.token_ids, part.lengths, part.mask))
        with strategy.arithmetic.mixed():
            count += predictor.right(ids, lengths, mask)
    return count


def plot(trained: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw the NLL, and where there is one the held-out accuracy, over the optimizer steps as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    panels = figure.subplots(1, 2, squeeze=False)[0]
    panels[0].plot([row["step"] for row in trained], [row["nll"] for row in trained], label="training samples")
    for panel, name, label in ((panels[0], "nll", "NLL of a token (nats)"), (panels[1], "accuracy", "token accuracy")):
        rows = [row for row in held if row[name] is not None]
        if rows:
            steps, values = [row["step"] for row in rows], [row[name] for row in rows]
            panel.plot(steps, values, color="tab:orange", marker="o", label="held out")
        panel.set_xlabel("optimizer step")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=130)
