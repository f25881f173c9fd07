"""`envhub doctor`, on this installation and on broken ones made of small packages."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from envhub.cli import doctor
from envhub.cli.doctor import Finding
from envhub.errors import EnvironmentFault, UserError
from envhub.sandbox import ProcessSandbox, SlotSandbox
from envhub.sandbox.base import Probe

ROOT = Path(__file__).resolve().parents[2]


class Site:
    """A folder of packages that this process and those it starts find before the installed ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def package(
        self, name: str, code: str, *, version: str = "9.9", entry_points: str = "", requires: tuple[str, ...] = ()
    ) -> None:
        module = name.replace("-", "_")
        (self.folder / f"{module}.py").write_text(code)
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        extras = "Provides-Extra: more\n" if any("extra ==" in requirement for requirement in requires) else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extras}{needs}")
        (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return Site(folder)


def only(findings: list[Finding], name: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.name == name]
    return finding


# Plugins


def test_plugins_that_import_are_counted(site: Site) -> None:
    before = doctor.check_plugins()[0].detail
    site.package("good-plugin", "Env = object", entry_points="[envhub.environments]\ngood = good_plugin:Env\n")
    after = doctor.check_plugins()[0]
    assert after.status == "ok"
    assert after.detail != before


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import a_library_that_is_missing", "No module named 'a_library_that_is_missing'"),
        ("Env = 1 /", "SyntaxError"),
        ("import sys; sys.exit('goodbye')", "SystemExit: goodbye"),
        ("Other = object", "has no attribute 'Env'"),
    ],
)
def test_a_plugin_that_does_not_import_is_named_with_its_package(site: Site, code: str, error: str) -> None:
    site.package("bad-plugin", code, entry_points="[envhub.rewards]\nbad = bad_plugin:Env\n")
    finding = only(doctor.check_plugins(), "plugin bad-plugin")
    assert finding.status == "fail"
    assert "'bad' of envhub.rewards" in finding.detail
    assert error in finding.detail
    assert "pip uninstall bad-plugin" in finding.remedy


@pytest.mark.parametrize(
    ("code", "said"),
    [("import os; os._exit(7)", "exit code 7"), ("import time; time.sleep(600)", "did not end within 30 s")],
)
def test_a_plugin_that_crashes_or_hangs_is_named(
    site: Site, code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PROBE_DEADLINE", 30.0)  # what is sound loads in it, also on a busy machine
    site.package("evil-plugin", code, entry_points="[envhub.engines]\nevil = evil_plugin:Engine\n")
    finding = only(doctor.check_plugins(), "plugins")
    assert finding.status == "fail"
    assert "loading evil-plugin: envhub.engines: evil" in finding.detail
    assert said in finding.detail


# Packages


def test_a_library_that_is_installed_and_broken_fails_with_its_error(site: Site) -> None:
    for name in ("torch", "transformers", "vllm"):
        site.package(name, "raise ImportError('libsomething.so.1: cannot open shared object file')")
    for check, name in [
        (doctor.check_torch, "torch"),
        (doctor.check_transformers, "transformers"),
        (doctor.check_vllm, "vllm"),
    ]:
        finding = only(check(), name)
        assert finding.status == "fail"
        assert "9.9 does not import: ImportError: libsomething.so.1" in finding.detail
        assert "envhub doctor --repair" in finding.remedy


def test_a_mismatched_torchvision_points_to_the_repair(site: Site) -> None:
    site.package("torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    finding = only(doctor.check_media_packages(), "torchvision")
    assert finding.status == "fail"
    assert finding.remedy == "run: envhub doctor --repair"


def test_a_torch_that_sees_no_gpu_beside_nvidia_smi_is_a_warning(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.package(
        "torch",
        "import types\n__version__ = '9.9'\n"
        "cuda = types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)\n"
        "get_num_threads = lambda: 1\n",
    )
    assert only(doctor.check_torch(), "device").status == "ok"
    program = site.folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(site.folder), prepend=os.pathsep)
    assert only(doctor.check_torch(), "device").status == "warn"


def test_a_missing_or_too_old_dependency_fails_and_extras_are_listed(site: Site) -> None:
    more = ('absent-one; extra == "more"', 'pytest>=1; extra == "more"')
    site.package("envhub", "", requires=("absent-package>=2", "pytest>=999", "pluggy", *more))
    (site.folder / "envhub.py").unlink()
    findings = doctor.check_extras()
    package = only(findings, "envhub")
    assert package.status == "fail"
    assert "9.9 lacks absent-package, pytest>=999 (is " in package.detail
    assert "not installed: more (lacks absent-one)" in only(findings, "extras").detail


# Machine


def test_folders_that_cannot_be_written_fail_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVHUB_CACHE", str(tmp_path / "new" / "cache"))
    assert [finding.status for finding in doctor.check_folders()] == ["ok", "ok"]
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "new").write_text("a file")
    cache = only(doctor.check_folders(), "cache folder")
    assert cache.status == "fail"
    assert "cannot be written" in cache.detail
    assert "ENVHUB_CACHE" in cache.remedy


def test_a_check_that_fails_itself_does_not_take_the_report_along(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_memory() -> list[Finding]:
        raise RuntimeError("no such sensor")

    monkeypatch.setattr(doctor, "check_memory", check_memory)
    for slow in ("check_torch", "check_transformers", "check_vllm", "check_media_packages"):
        monkeypatch.setattr(doctor, slow, list)
    findings = doctor.diagnose()
    memory = only(findings, "memory")
    assert memory.status == "fail"
    assert memory.detail == "could not be examined: RuntimeError: no such sensor"
    assert only(findings, "python").status == "ok"


@pytest.mark.parametrize(
    ("probes", "status", "said"),
    [
        ([Probe("no network", True, True)], "ok", "1 of 1 properties hold"),
        ([Probe("no network", False, False, "no seccomp here")], "warn", "not here: no network (no seccomp here)"),
        ([Probe("no network", True, False, "it connected")], "fail", "no network does not hold: it connected"),
    ],
)
def test_the_sandbox_is_tried_out(monkeypatch: pytest.MonkeyPatch, probes: list[Probe], status: str, said: str) -> None:
    async def self_test(self: ProcessSandbox) -> list[Probe]:
        return probes

    monkeypatch.setattr("envhub.sandbox._shared", None)
    monkeypatch.setenv("ENVHUB_SANDBOX", "process")
    monkeypatch.setattr(ProcessSandbox, "self_test", self_test)
    monkeypatch.setattr(SlotSandbox, "start", refused)
    used, other, _ = doctor.check_sandbox()
    assert used.status == status and used.detail.startswith("tier process (in use): ") and said in used.detail
    assert bool(used.remedy) == (status != "ok")
    assert (other.status, other.detail) == ("ok", "tier slot: not on this machine: no root")


async def refused(self: SlotSandbox) -> None:
    raise EnvironmentFault("no root")


def test_a_tier_that_is_chosen_and_is_not_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotSandbox, "start", refused)
    monkeypatch.setattr("envhub.sandbox._shared", None)
    monkeypatch.setenv("ENVHUB_SANDBOX", "slot")
    used = doctor.check_sandbox()[0]
    assert used.status == "fail" and used.detail == "tier slot (in use): not on this machine: no root"
    assert "ENVHUB_SANDBOX=auto" in used.remedy
    monkeypatch.setattr("envhub.sandbox._shared", None)
    monkeypatch.setenv("ENVHUB_SANDBOX", "slots")
    with pytest.raises(UserError, match="no sandbox tier named 'slots'; did you mean 'slot'"):
        doctor.check_sandbox()


# The command


def fake_findings(**_: bool) -> list[Finding]:
    return [Finding("a", "ok", "fine [not markup]"), Finding("b", "fail", "broken", "pip install 'envhub[train]'")]


def test_the_table_shows_every_finding_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "diagnose", fake_findings)
    assert doctor.doctor_command(repair=False, json=False) == 1
    shown = capsys.readouterr().out
    assert "fine [not markup]" in shown
    assert "to do: pip install 'envhub[train]'" in shown


def test_json_holds_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "diagnose", fake_findings)
    assert doctor.doctor_command(repair=False, json=True) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["findings"][1] == {
        "name": "b",
        "status": "fail",
        "detail": "broken",
        "remedy": "pip install 'envhub[train]'",
    }


@pytest.mark.slow
def test_this_installation_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor.doctor_command(repair=False, json=True)
    report = json.loads(capsys.readouterr().out)
    failed = [finding for finding in report["findings"] if finding["status"] == "fail"]
    assert failed == []
    assert code == 0
    assert {"python", "envhub", "extras", "memory", "sandbox", "plugins"} <= {
        finding["name"] for finding in report["findings"]
    }


def test_without_any_dependency_it_still_reports(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    code = "import sys; from envhub.cli.doctor import doctor_command; sys.exit(doctor_command(repair=True, json=True))"
    done = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "python"), "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1, done.stderr
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["torch"]["remedy"] == "pip install 'envhub[train]'"
    assert findings["vllm"]["status"] == "warn"
    assert findings["repair"]["detail"] == "nothing to repair"
    assert sys.version.split()[0] in findings["python"]["detail"]
