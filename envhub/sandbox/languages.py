"""Programs in other languages than Python: how each is built and run, and whether this machine can."""

import shutil
import weakref
from dataclasses import dataclass

from envhub.errors import EnvironmentFault, UserError, did_you_mean
from envhub.sandbox.base import ExecResult, RunOutcome, Sandbox, SandboxLimits, SessionError
from envhub.sandbox.places import search_path

PYTHON = "python"


@dataclass(frozen=True)
class Language:
    """`file` is what the source is called in its box; `build` makes `main` of it, where it is to be built.

    `endings` are those of its files; `hello` is a program that prints `hello`.
    """

    name: str
    file: str
    run: tuple[str, ...]
    hello: str
    endings: tuple[str, ...]
    build: tuple[str, ...] = ()

    @property
    def tool(self) -> str:
        """The program of the machine that it cannot do without."""
        return (self.build or self.run)[0]


_C = '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n'

LANGUAGES = {
    language.name: language
    for language in (
        Language(PYTHON, "main.py", ("python3", "main.py"), "print('hello')\n", (".py",)),
        Language("javascript", "main.js", ("node", "main.js"), "console.log('hello')\n", (".js",)),
        Language("bash", "main.sh", ("bash", "main.sh"), "echo hello\n", (".sh", ".bash")),
        Language("c", "main.c", ("./main",), _C, (".c",), ("gcc", "-std=c17", "-O2", "-o", "main", "main.c", "-lm")),
        Language(
            "cpp",
            "main.cpp",
            ("./main",),
            _C,
            (".cpp", ".cc", ".cxx"),
            ("g++", "-std=c++20", "-O2", "-o", "main", "main.cpp"),
        ),
    )
}
"""The languages of programs, by name."""

_BUILDING = SandboxLimits(wall_seconds=30.0, cpu_seconds=20, memory_mb=1024, total_mb=1024, file_mb=64, disk_mb=128)
_PROGRAM_KB = 10 << 10


def get_language(name: str) -> Language:
    """The language of a name. Raises `UserError` for an unknown one, and for one whose tool this machine has not."""
    if name not in LANGUAGES:
        raise UserError(f"no language {name!r}{did_you_mean(name, LANGUAGES)} (there are {', '.join(LANGUAGES)})")
    language = LANGUAGES[name]
    if name != PYTHON and shutil.which(language.tool, path=search_path()) is None:
        raise UserError(
            f"programs in {name} need {language.tool}, which is in none of {search_path()}: install it there"
        )
    return language


@dataclass(frozen=True)
class Program:
    """A program that is ready to run: its file, or why it could not be built."""

    language: Language
    data: bytes = b""
    failed: ExecResult | None = None


async def build(sandbox: Sandbox, name: str, source: str, limits: SandboxLimits) -> Program:
    """Make a program of a source, in a box of its own.

    A source that does not compile has `failed` with the outcome `syntax_error` and what the compiler said.
    Raises `UserError` as `get_language` does, `EnvironmentFault` where the language does not work in this sandbox at all.
    """
    language = get_language(name)
    await _prove(sandbox, language, limits)
    return await _build(sandbox, language, source, limits)


async def _build(sandbox: Sandbox, language: Language, source: str, limits: SandboxLimits) -> Program:
    data = source.encode("utf-8", "surrogatepass")
    if len(data) > limits.source_kb << 10:
        said = f"the source is {len(data)} bytes long, over {limits.source_kb} kB"
        return Program(language, failed=ExecResult(RunOutcome.source_limit, 1, "", said, 0.0))
    if not language.build:
        return Program(language, data)
    async with await sandbox.open_session(_BUILDING) as session:
        await session.write(language.file, data)
        result = await session.exec(language.build)
        if result.outcome is not RunOutcome.ok:
            outcome = RunOutcome.syntax_error if result.outcome is RunOutcome.exited else result.outcome
            return Program(language, failed=ExecResult(outcome, result.exit_code, "", result.stderr, result.seconds))
        try:
            return Program(language, await session.read("main", most_kb=_PROGRAM_KB))
        except SessionError as problem:
            failed = ExecResult(RunOutcome.result_limit, 1, "", f"the built program: {problem}", result.seconds)
            return Program(language, failed=failed)


async def run_program(
    sandbox: Sandbox, source: str, stdin: str = "", limits: SandboxLimits | None = None, *, language: str = PYTHON
) -> ExecResult:
    """Run a program in any of `LANGUAGES`, in a box of its own. Raises what `build` does, and `EnvironmentFault`."""
    if language == PYTHON:
        return await sandbox.run_program(source, stdin, limits)
    limits = limits or SandboxLimits()
    return await run_built(sandbox, await build(sandbox, language, source, limits), stdin, limits)


async def run_built(sandbox: Sandbox, program: Program, stdin: str, limits: SandboxLimits) -> ExecResult:
    """Run a program in a box of its own. Raises `EnvironmentFault` when the sandbox failed."""
    if program.failed is not None:
        return program.failed
    language = program.language
    async with await sandbox.open_session(limits) as session:
        try:
            await session.write("main" if language.build else language.file, program.data, executable=True)
        except SessionError as problem:
            return ExecResult(RunOutcome.result_limit, 1, "", f"the program is too large for its box: {problem}", 0.0)
        return await session.exec(language.run, stdin=stdin)


_proven: weakref.WeakKeyDictionary[Sandbox, dict[tuple[str, SandboxLimits], str]] = weakref.WeakKeyDictionary()


async def _prove(sandbox: Sandbox, language: Language, limits: SandboxLimits) -> None:
    """Let a program that says hello run under these limits, once, so that what fails later is the submission's doing."""
    known, key = _proven.setdefault(sandbox, {}), (language.name, limits)
    if key not in known:
        result = await run_built(sandbox, await _build(sandbox, language, language.hello, limits), "", limits)
        right = result.outcome is RunOutcome.ok and result.stdout == "hello\n"
        last = result.stderr.strip().rpartition("\n")[2][:300] or "it printed something else"
        known[key] = "" if right else f"{result.outcome.value}, exit code {result.exit_code}: {last}"
    if known[key]:
        raise EnvironmentFault(
            f"no program in {language.name} runs in the {sandbox.tier} sandbox under these limits, not even one that says "
            f"hello ({known[key]}): raise memory_mb, processes or open_files"
        )
