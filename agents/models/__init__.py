"""What `--model` may name: a bundled model, a folder in Hugging Face layout, or a model of the Hugging Face hub."""

from envhub.agents.models.cache import cache_root
from envhub.agents.models.checks import ModelError, check_model_folder, fingerprint
from envhub.agents.models.source import ALIASES, ModelSource, resolve_model
from envhub.agents.models.tiny import build_tiny_model

__all__ = [
    "ALIASES",
    "ModelError",
    "ModelSource",
    "build_tiny_model",
    "cache_root",
    "check_model_folder",
    "fingerprint",
    "resolve_model",
]
