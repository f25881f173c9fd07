"""The model that a KL compares the policy with: found, and checked to mean the same by its tokens."""

from collections.abc import Callable
from pathlib import Path

from envhub.agents.engines.loading import load_tokenizer
from envhub.agents.models import ModelSource, resolve_model
from envhub.errors import UserError
from envhub.guard import described


def find_reference(
    named: str | None, initial: ModelSource, kl_coef: float, notify: Callable[[str], None] | None = None
) -> Path | None:
    """The folder of the reference: that of the model `named`, else the initial one's; None where the KL has no weight.

    Raises UserError for a model that cannot be found, or whose vocabulary is not the initial model's.
    """
    if not kl_coef:
        return None
    if named is None:
        return initial.path
    found = resolve_model(named) if notify is None else resolve_model(named, notify=notify)
    refuse_other_vocabulary(initial, found)
    return found.path


def refuse_other_vocabulary(model: ModelSource, reference: ModelSource) -> None:
    """Raise UserError where a token of one model is another of the reference's, or none.

    A KL compares probabilities of the same tokens; what the two models were trained on may differ.
    """
    own, other = (load_tokenizer(source.path).get_vocab() for source in (model, reference))
    said = f"the reference {reference.alias} cannot be compared with {model.alias}"
    remedy = "take a reference of the same family, or leave it out (the initial model is one)"
    if own != other:
        token, number = min(set(own.items()) ^ set(other.items()), key=lambda item: (item[1], item[0]))
        there = other.get(token, "not there") if own.get(token) == number else own.get(token, "not there")
        where = "the model" if own.get(token) == number else "the reference"
        elsewhere = "the reference" if where == "the model" else "the model"
        raise UserError(
            f"{said}: its vocabulary is another; token {token!r} is {number} in {where} and {there} in {elsewhere}; {remedy}"
        )
    size, needed = _width(reference), 1 + max(own.values())
    if size < needed:
        raise UserError(f"{said}: it has logits of {size} tokens, and the vocabulary needs {needed}; {remedy}")


def _width(source: ModelSource) -> int:
    from transformers import AutoConfig

    try:
        return int(AutoConfig.from_pretrained(str(source.path)).get_text_config().vocab_size)
    except Exception as problem:  # what a damaged configuration raises is of any class
        raise UserError(f"cannot read the configuration of {source.path}: {described(problem)}") from problem
