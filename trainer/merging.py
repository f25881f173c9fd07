"""From an adapter and its base to a whole model."""

from pathlib import Path

from envhub.agents.engines import checkpoints
from envhub.agents.engines.loading import load_tokenizer
from envhub.agents.models import ModelError, check_model_folder, resolve_model
from envhub.errors import UserError
from envhub.home import expanded, folder_beside
from envhub.trainer import lora
from envhub.trainer.model import load_model


def find_adapter(given: Path) -> Path:
    """The folder of the adapter in a run (that of its newest checkpoint), a checkpoint, or a folder of PEFT's.

    Raises UserError where there is none, and for a whole model, which has nothing to merge.
    """
    folder = expanded(given, "the checkpoint")
    if not folder.is_dir():
        raise UserError(f"there is no folder {given}: name a run, a checkpoint, or the folder of an adapter")
    found = folder
    if done := checkpoints.finished(folder / "checkpoints"):
        found = done[-1][1]
    if (found / "model").is_dir():
        found = found / "model"
    if lora.is_adapter(found):
        return found
    if (found / "config.json").is_file() and list(found.glob("*.safetensors")):
        raise UserError(
            f"{found} is a whole model already, with nothing to merge: use it as it is, with --model {given}"
        )
    raise UserError(f"{given} holds no checkpoint and no adapter; name a run that was trained with lora_rank")


def merge(given: Path, output: Path | None = None, *, base: str | None = None) -> Path:
    """Write the model that an adapter and its base amount to, in float32, to a new folder, which is returned.

    `given` is what `find_adapter` takes; `output` is by default its name with `-merged`; `base` names the base where it is
    no longer at its place. The folder appears whole or not at all. Raises UserError.
    """
    adapter_folder = find_adapter(given)
    target = output if output is not None else given.absolute().with_name(f"{given.absolute().name}-merged")
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} exists already; name another folder to write to, or remove it")
    try:
        settings = lora.read_settings(adapter_folder)
        known = lora.base_of(adapter_folder)
        folder = _base(
            base or (known.path if known else None) or settings.get("base_model_name_or_path"), adapter_folder
        )
        lora.refuse_another_base(adapter_folder, folder)
        model = load_model(folder, "cpu")
        adapter = lora.Adapter(model, _lora(settings), folder)
        adapter.load(adapter_folder)
    except ValueError as problem:
        raise UserError(
            f"cannot merge {adapter_folder}: {problem}; copy it again, or take another checkpoint"
        ) from problem
    whole = adapter.unloaded()
    has_tokenizer = (adapter_folder / "tokenizer_config.json").is_file()
    tokenizer = load_tokenizer(adapter_folder if has_tokenizer else folder)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(target, "writing") as writing:
            whole.save_pretrained(writing)
            tokenizer.save_pretrained(writing)
            check_model_folder(writing)
    except OSError as problem:
        raise UserError(f"cannot write {target}: {problem.strerror or problem}; nothing is left there") from problem
    return target


def _base(named: object, adapter: Path) -> Path:
    if not isinstance(named, str) or not named:
        raise UserError(f"the adapter in {adapter} does not say what its base is: name it with --base")
    try:
        return resolve_model(named).path
    except ModelError as problem:
        raise UserError(
            f"the base of the adapter in {adapter} cannot be used: {problem}; where it is elsewhere now, name it with --base"
        ) from problem


def _lora(settings: dict[str, object]) -> lora.Lora:
    """The settings of an adapter. Raises ValueError for those that `envhub train` does not make."""
    rank, alpha, targets = (settings.get(name) for name in ("r", "lora_alpha", "target_modules"))
    plain = isinstance(rank, int) and isinstance(alpha, int | float) and isinstance(targets, list) and targets
    if not plain or settings.get("peft_type") != "LORA":
        raise ValueError(f"{lora.SETTINGS} describes no plain LoRA with r, lora_alpha and a list of target_modules")
    merged = {
        "bias": ("none",), "use_rslora": (False,), "use_dora": (False,), "modules_to_save": (None,),
        "alpha_pattern": ({}, None), "rank_pattern": ({}, None),
    }  # fmt: skip
    for name, values in merged.items():
        if settings.get(name, values[0]) not in values:
            raise ValueError(
                f"{lora.SETTINGS} has {name} {settings[name]!r}, which is not merged here; use PEFT's own merge"
            )
    assert isinstance(rank, int) and isinstance(alpha, int | float) and isinstance(targets, list)
    return lora.Lora(rank, float(alpha), tuple(map(str, targets)))
