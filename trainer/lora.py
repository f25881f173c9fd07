"""LoRA: the model stays as it is, and small matrices beside its linear layers are trained in its place.

A linear layer with the weight W [out, in] then computes W x + (alpha / rank) B A x, with A [rank, in] random and B
[out, rank] 0 at the start (arXiv 2106.09685). PEFT holds the matrices and lays down their files.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from envhub.agents.engines.weights import write_weights
from envhub.agents.models.checks import fingerprint
from envhub.errors import MissingExtraError, UserError, did_you_mean
from envhub.trainer.settings import target_names

WEIGHTS, SETTINGS, BASE = "adapter_model.safetensors", "adapter_config.json", "base_model.json"
_NAME = "default"  # of PEFT's for its only adapter


@dataclass(frozen=True, slots=True)
class Lora:
    """What is trained beside a model: matrices of a `rank`, scaled by `alpha` / `rank`, drawn by `seed`.

    `targets` are the ends of the names of the layers that get them; none means every linear layer of the decoder.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = ()
    seed: int = 0

    @classmethod
    def of(cls, settings: BaseModel) -> "Lora | None":
        """What the configuration of a run says of it; None where all weights are trained."""
        values: Any = settings
        if not getattr(values, "lora_rank", 0):
            return None
        rank = values.lora_rank
        return cls(rank, values.lora_alpha or 2.0 * rank, target_names(values.lora_targets), values.seed)


def refuse_unfit(model: Path, settings: BaseModel) -> None:
    """Raise UserError where a model has no layers for the adapter of a run. Reads the model's configuration only."""
    lora = Lora.of(settings)
    if lora is None:
        return
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(model)))
    chosen_layers(shell, lora)


def chosen_layers(model: Any, lora: Lora) -> list[str]:
    """The ends of the names of the linear layers that get an adapter.

    Raises UserError for a target that is none of them, and for a rank that is above a side of one.
    """
    layers = _linear_layers(model)
    ends = sorted({name.rpartition(".")[2] for name in layers})
    if not ends:
        raise UserError(
            f"the decoder of {type(model).__name__} has no linear layers, which lora_rank needs: set it to 0"
        )
    for target in lora.targets:
        if not any(_ends_with(name, target) for name in layers):
            known = any(_ends_with(name, target) for name, _ in model.named_modules())
            what = "is no linear layer of the model's decoder" if known else "matches no layer of the model"
            raise UserError(f"lora_targets: {target!r} {what}; there are {', '.join(ends)}{did_you_mean(target, ends)}")
    targets = list(lora.targets) or ends
    for name, sides in layers.items():
        if min(sides) < lora.rank and any(_ends_with(name, target) for target in targets):
            raise UserError(
                f"lora_rank {lora.rank} is above the smaller side of {name} ({sides[0]} x {sides[1]}): it would be no "
                f"smaller than the layer; set it to {min(sides)} at the most, or leave the layer out of lora_targets"
            )
    return targets


def _linear_layers(model: Any) -> dict[str, tuple[int, int]]:
    """The linear layers of a model's decoder by their names in the model, and the two sides of their matrices."""
    from transformers.pytorch_utils import Conv1D

    inside = _of_decoder(model)
    return {
        name: (int(module.weight.shape[0]), int(module.weight.shape[1]))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and id(module) in inside
    }


def _of_decoder(model: Any) -> set[int]:
    """The modules of a model's decoder, by their `id`."""
    return {id(module) for module in model.get_decoder().modules()}


def _outside(model: Any, targets: list[str]) -> list[str]:
    """The layers that a target names too, but that are not of the decoder."""
    inside = _of_decoder(model)
    return [
        name
        for name, module in model.named_modules()
        if id(module) not in inside and any(_ends_with(name, target) for target in targets)
    ]


def _ends_with(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


class Base(BaseModel):
    """The model that an adapter was trained beside: its folder, and a digest that another model does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    fingerprint: str


class Adapter:
    """The matrices beside the layers of one model, whose own weights are frozen and never change.

    The model's classes stay what they are; its adapted layers compute with the matrices. The reference of a KL is the
    model without them, or with those that `keep_reference` has kept.
    """

    def __init__(self, model: Any, lora: Lora, base: Path) -> None:
        """Adapt the model that was loaded from the folder `base`. Raises UserError."""
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as problem:
            raise MissingExtraError("lora_rank", "train") from problem
        self._base = Base(path=str(base), fingerprint=fingerprint(base))
        targets = chosen_layers(model, lora)
        settings = LoraConfig(
            r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0, bias="none",  # type: ignore[arg-type]
            exclude_modules=_outside(model, targets) or None, task_type="CAUSAL_LM", base_model_name_or_path=str(base),
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lora.seed)
            self._peft: Any = get_peft_model(model, settings, autocast_adapter_dtype=True)
        self._model = model
        self._kept: dict[str, Tensor] | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The matrices by the names that they have in the file; they share memory with the model's."""
        from peft import get_peft_model_state_dict

        found: dict[str, Tensor] = get_peft_model_state_dict(self._peft, save_embedding_layers=False)
        return found

    @torch.no_grad()
    def merged(self, *, whole: bool) -> dict[str, Tensor]:
        """The weights that the model amounts to, in float32, by the names of its checkpoint.

        An adapted layer's is W + (alpha / rank) B A. Without `whole`, only those of adapted layers: the rest never changes.
        """
        from peft.tuners.lora import LoraLayer

        layers: dict[str, Any] = {
            name: module for name, module in self._model.named_modules() if isinstance(module, LoraLayer)
        }
        out = {}
        for name, tensor in self._model.state_dict().items():
            layer, inner, rest = name.rpartition(".base_layer.")
            if inner and rest == "weight":
                out[f"{layer}.weight"] = tensor.float() + layers[layer].get_delta_weight(_NAME)
            elif whole and ".lora_" not in name:
                out[f"{layer}.{rest}" if inner else name] = tensor
        return out

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """While it is open, the model is the reference."""
        if self._kept is None:
            with self._peft.disable_adapter():
                yield
            return
        now = {name: tensor.clone() for name, tensor in self.tensors.items()}
        try:
            self._fill(self._kept)
            yield
        finally:
            self._fill(now)

    def keep_reference(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Let the reference be the model with these matrices, or with those of now. Raises ValueError where they do not fit."""
        given = self.tensors if tensors is None else self._fitting(tensors)
        self._kept = {name: tensor.detach().clone() for name, tensor in given.items()}

    def unloaded(self) -> Any:
        """The model with the matrices added to its weights, and no longer adapted."""
        return self._peft.merge_and_unload()

    @property
    def kept(self) -> dict[str, Tensor] | None:
        """The matrices of the reference, where there are any."""
        return self._kept

    def save(self, folder: Path) -> None:
        """Write the matrices and their settings as PEFT does, and of what base they are."""
        write_weights(self.tensors, folder / WEIGHTS)
        self._peft.peft_config[_NAME].save_pretrained(str(folder))
        described = read_settings(folder)  # PEFT holds the targets as a set: the same adapter is to be the same file
        described |= {"target_modules": sorted(described["target_modules"]), "inference_mode": True}
        (folder / SETTINGS).write_text(json.dumps(described, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        (folder / BASE).write_text(self._base.model_dump_json(indent=2), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Take up the matrices of a folder.

        Raises ValueError where they do not fit, UserError for those of another base or scale.
        """
        found, own = read_settings(folder).get("lora_alpha"), self._peft.peft_config[_NAME].lora_alpha
        if found != own:
            raise UserError(
                f"the adapter in {folder} has the lora_alpha {found!r}, and the run {own!r}; set that back in the run's "
                "config.json, or start a new run"
            )
        refuse_another_base(folder, Path(self._base.path))
        self._fill(self._fitting(read_tensors(folder)))

    def _fitting(self, tensors: Any) -> Mapping[str, Tensor]:
        own = self.tensors
        if not isinstance(tensors, Mapping) or tensors.keys() != own.keys():
            raise ValueError(f"adapter: it is not of these {len(own) // 2} layers")
        for name, tensor in own.items():
            if not isinstance(tensors[name], Tensor) or tensors[name].shape != tensor.shape:
                raise ValueError(f"adapter: {name} is no tensor of shape {tuple(tensor.shape)}")
        return tensors

    @torch.no_grad()
    def _fill(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no whole model."""
    return (folder / SETTINGS).is_file() and not (folder / "config.json").is_file()


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the adapter in a folder. Raises ValueError naming the file where it cannot be read."""
    try:
        found = json.loads((folder / SETTINGS).read_bytes())
    except OSError as problem:
        raise ValueError(f"{SETTINGS}: {problem.strerror or problem}") from problem
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{SETTINGS} is no JSON ({type(problem).__name__})") from problem
    if not isinstance(found, dict):
        raise ValueError(f"{SETTINGS} holds no JSON object")
    return found


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The matrices of the adapter in a folder. Raises ValueError naming the file where it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as problem:
        raise ValueError(f"{WEIGHTS} cannot be read: {problem}") from problem


def base_of(folder: Path) -> Base | None:
    """The base of an adapter that a run has written; None for one from elsewhere. Raises ValueError."""
    try:
        return Base.model_validate_json((folder / BASE).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as problem:
        raise ValueError(f"{BASE} cannot be read ({type(problem).__name__})") from problem


def refuse_another_base(folder: Path, model: Path) -> None:
    """Raise UserError where the adapter in a folder was trained beside another model than that of the folder `model`."""
    base = base_of(folder)
    if base is not None and (found := fingerprint(model)) != base.fingerprint:
        raise UserError(
            f"the adapter in {folder} was trained beside the model {base.path} with the fingerprint {base.fingerprint}, and "
            f"{model} has {found}: it is another model, or was changed since; put the old one back"
        )
