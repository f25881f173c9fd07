"""Sessions as a sandbox provider of inspect_ai, by the name `envhub`: `Task(..., sandbox="envhub")`.

Found by inspect_ai through an entry point; nothing else of envhub imports it.
"""

import errno
import tomllib
from pathlib import Path
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from envhub.environment import validate_config
from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import RunOutcome, SandboxLimits, Session, SessionError, default_sandbox

LIMITS = SandboxLimits(
    wall_seconds=3600.0, cpu_seconds=600, memory_mb=4096, total_mb=2048, processes=256, file_mb=128, disk_mb=512,
    open_files=1024, output_kb=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE >> 10,
)  # fmt: skip
"""The limits of a sandbox that is given none: those of an agent's work, not of a submission."""

_ERRORS: dict[int, type[OSError]] = {
    errno.ENOENT: FileNotFoundError, errno.ENOTDIR: FileNotFoundError, errno.EISDIR: IsADirectoryError,
    errno.EACCES: PermissionError, errno.EPERM: PermissionError,
}  # fmt: skip
_NOT_STARTED, _SIGNALLED = 126, 128  # of shells, which inspect_ai expects


@sandboxenv(name="envhub")
class EnvhubSandboxEnvironment(SandboxEnvironment):  # type: ignore[misc, unused-ignore]
    """A session of the sandbox that this process shares. Its configuration is `SandboxLimits`, or a TOML file of them."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        sandbox = default_sandbox()
        await sandbox.start()
        return {"default": cls(await sandbox.open_session(_limits(config)))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).session.close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return _checked(config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None:
            raise SandboxUserUnsupportedError(f"a program runs as the one user of its sandbox, not as {user!r}")
        result = await self.session.exec(
            cmd, stdin=b"" if input is None else input, env=env, cwd=cwd or "", wall_seconds=timeout
        )
        if result.outcome is RunOutcome.timeout and timeout is not None:
            raise TimeoutError(f"{cmd[0]} ran longer than {timeout} s")
        if result.outcome is RunOutcome.output_limit:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, f"{result.stdout}{result.stderr}"
            )
        if result.exit_code == _NOT_STARTED and result.stderr.endswith("Permission denied\n"):
            raise PermissionError(errno.EACCES, "Permission denied", cmd[0])
        code = _SIGNALLED - result.exit_code if result.exit_code < 0 else result.exit_code
        return ExecResult(result.outcome is RunOutcome.ok, code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            await self.session.write(file, contents)
        except SessionError as problem:
            raise _as_os_error(problem, file) from None

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        try:
            data = await self.session.read(file, most_kb=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE >> 10)
        except SessionError as problem:
            if problem.errno == errno.EFBIG:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from None
            raise _as_os_error(problem, file) from None
        return data.decode("utf-8") if text else data


def _limits(config: BaseModel | str | None) -> SandboxLimits:
    """Raises `UserError` for a file that is none of limits."""
    if config is None:
        return LIMITS
    if isinstance(config, SandboxLimits):
        return config
    if isinstance(config, BaseModel):
        return _checked(config.model_dump())
    try:
        return _checked(tomllib.loads(Path(config).read_text(encoding="utf-8")))
    except (OSError, ValueError) as problem:
        raise UserError(f"{config} is no TOML file of sandbox limits: {problem}") from None


def _checked(values: dict[str, Any]) -> SandboxLimits:
    limits: SandboxLimits = validate_config(SandboxLimits, {**LIMITS.model_dump(), **values}, "the sandbox's limits")
    return limits


def _as_os_error(problem: SessionError, file: str) -> Exception:
    number = problem.errno
    if number is None:
        return EnvironmentFault(str(problem))
    return _ERRORS.get(number, OSError)(number, str(problem), file)
