"""What runs leave: rollouts as JSON lines and SQLite, and run folders."""

from envhub.records.folder import RunFolder, read_json
from envhub.records.jsonl import JsonlWriter, read_rollouts, write_rollouts
from envhub.records.store import RolloutStore

__all__ = ["JsonlWriter", "RolloutStore", "RunFolder", "read_json", "read_rollouts", "write_rollouts"]
