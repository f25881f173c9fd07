"""How servers are run; nothing here needs what the servers themselves are made of."""

from pydantic import BaseModel, ConfigDict, Field

from envhub.sandbox import SandboxLimits

LARGEST = SandboxLimits(
    wall_seconds=3600.0, cpu_seconds=3600, memory_mb=8192, total_mb=4096, processes=512, file_mb=512, disk_mb=1024,
    open_files=4096, output_kb=16_384, result_kb=16_384, source_kb=4096,
)  # fmt: skip
"""The largest limits that a caller may ask a sandbox server for, unless it is told others."""


class ServerSettings(BaseModel):
    """How a sandbox server is run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    most_requests: int = Field(256, ge=1, description="requests at one time; others are told that it is busy, and wait")
    most_sessions: int = Field(64, ge=1, le=400, description="open sessions at one time")
    idle_seconds: float = Field(900.0, gt=0, description="seconds without a request after which a session is ended")
