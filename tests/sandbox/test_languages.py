"""Programs in several languages: right, wrong, broken and endless, on every tier."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import (
    LANGUAGES,
    TIERS,
    ProcessSandbox,
    Report,
    RunOutcome,
    SandboxLimits,
    default_sandbox,
    grade_program,
    languages,
)

from .tiers import tier

LIMITS = SandboxLimits(wall_seconds=30.0, cpu_seconds=10)
TESTS = [("2 3\n", "5\n"), ("-7 7\n", "0"), ("1000000 1\n", "1000001\n")]

SUM = {
    "python": "print(sum(map(int, input().split())))",
    "javascript": "console.log(require('fs').readFileSync(0, 'utf8').split(' ').reduce((a, b) => a + Number(b), 0))",
    "bash": "read a b\necho $((a + b))",
    "c": '#include <stdio.h>\nint main(void) { int a, b; scanf("%d %d", &a, &b); printf("%d\\n", a + b); }',
    "cpp": "#include <bits/stdc++.h>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; }",
}
ENDLESS = {
    "javascript": "for (;;);", "bash": "while :; do :; done", "c": "int main(void) { for (;;); }",
    "cpp": "int main() { for (volatile int x = 0;; x = x + 1); }",
}  # fmt: skip
BROKEN = {
    "javascript": ("console.log(", RunOutcome.exited, "SyntaxError"),
    "bash": ("exit 4", RunOutcome.exited, ""),
    "c": ("int main(void) { return x; }", RunOutcome.syntax_error, "'x' undeclared"),
    "cpp": ("int main() { return x; }", RunOutcome.syntax_error, "'x' was not declared"),
}
# what reads a file of the machine, where there was one to read
PEEKS = {
    "javascript": "console.log(require('fs').readFileSync('/etc/hostname', 'utf8'))",
    "bash": "cat /etc/hostname",
    "c": 'const char text[] = {\n#include "/etc/hostname"\n};\nint main(void) {}',
    "cpp": '__asm__(".incbin \\"/etc/hostname\\"");\nint main() {}',
}


@pytest_asyncio.fixture(params=TIERS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[ProcessSandbox]:
    made = await tier(request.param, 4)
    assert isinstance(made, ProcessSandbox)
    yield made
    await made.close()


async def graded(sandbox: ProcessSandbox, language: str, source: str, limits: SandboxLimits = LIMITS) -> Report:
    try:
        languages.get_language(language)
    except UserError as problem:
        pytest.skip(str(problem))
    return await grade_program(sandbox, source, TESTS, limits, language=language)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_right_program_passes_and_a_wrong_one_does_not(sandbox: ProcessSandbox, language: str) -> None:
    report = await graded(sandbox, language, SUM[language])
    assert report.all_passed, report
    wrong = await graded(sandbox, language, SUM[language].replace("a + ", "a - ").replace("sum(", "max("))
    assert wrong.outcomes["wrong"] >= 2 and wrong.passed <= 1, wrong


@pytest.mark.parametrize("language", BROKEN)
async def test_a_broken_program_is_told_from_a_wrong_one(sandbox: ProcessSandbox, language: str) -> None:
    source, outcome, said = BROKEN[language]
    report = await graded(sandbox, language, source)
    assert report.outcomes == {outcome.value: 3}
    assert report.first_failure is not None and said in report.first_failure.error.replace("‘", "'").replace("’", "'")


@pytest.mark.parametrize("language", ENDLESS)
async def test_an_endless_program_is_stopped_once(sandbox: ProcessSandbox, language: str) -> None:
    report = await graded(sandbox, language, ENDLESS[language], SandboxLimits(wall_seconds=20.0, cpu_seconds=1))
    assert report.outcomes == {"timeout": 3}


@pytest.mark.parametrize("language", PEEKS)
async def test_no_language_reads_files_of_the_machine(sandbox: ProcessSandbox, language: str) -> None:
    report = await graded(sandbox, language, PEEKS[language])
    assert report.passed == 0 and set(report.outcomes) <= {"syntax_error", "exited"}, report


async def test_a_run_sees_nothing_of_the_run_before(sandbox: ProcessSandbox) -> None:
    source = "if [ -e seen ]; then echo cheat; else touch seen; read a b; echo $((a + b)); fi"
    assert (await graded(sandbox, "bash", source)).all_passed


@pytest.mark.parametrize("language", ["bash", "c"])
async def test_a_source_over_its_limit_is_not_run(sandbox: ProcessSandbox, language: str) -> None:
    report = await graded(sandbox, language, "#" * 3000, LIMITS.model_copy(update={"source_kb": 2}))
    assert report.outcomes == {"source_limit": 3}


async def test_a_built_program_may_not_be_of_any_size(sandbox: ProcessSandbox) -> None:
    report = await graded(sandbox, "c", "char huge[32 << 20] = {1};\nint main(void) {}")
    assert report.outcomes == {"result_limit": 3} and "larger than" in report.first_failure.error, report  # type: ignore[union-attr]


async def test_limits_that_no_program_fits_in_are_no_failure_of_the_submission(sandbox: ProcessSandbox) -> None:
    with pytest.raises(
        EnvironmentFault, match="no program in javascript runs in the .* sandbox under these limits.*hello"
    ):
        await graded(
            sandbox, "javascript", SUM["javascript"], LIMITS.model_copy(update={"memory_mb": 64, "processes": 1})
        )


async def test_a_language_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = default_sandbox()
    with pytest.raises(UserError, match="no language 'javascirpt'; did you mean 'javascript'"):
        await grade_program(sandbox, "", TESTS, language="javascirpt")
    monkeypatch.setattr(languages, "search_path", lambda: "/nowhere")
    with pytest.raises(UserError, match="programs in cpp need g\\+\\+, which is in none of /nowhere: install it there"):
        await grade_program(sandbox, "", TESTS, language="cpp")
