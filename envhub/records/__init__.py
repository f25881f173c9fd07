"""What runs leave: rollouts as JSON lines and SQLite, and run folders."""

from envhub.records.folder import RunFolder, numbered_folder, read_json
from envhub.records.jsonl import JsonlWriter, read_rollouts, write_rollouts
from envhub.records.store import RolloutStore, reconciled, taken_up

__all__ = [
    "JsonlWriter",
    "RolloutStore",
    "RunFolder",
    "numbered_folder",
    "read_json",
    "read_rollouts",
    "reconciled",
    "taken_up",
    "write_rollouts",
]
