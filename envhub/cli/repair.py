"""Repair torchvision, torchaudio and torchcodec where their compiled parts do not fit the installed torch.

Beside a CPU build of torch, pip may install builds of them that were compiled for another torch. torchvision then fails
with "operator torchvision::nms does not exist", torchaudio with "Could not load this library", and with either of them
every import of a transformers model fails. The cures are complete for what envhub uses:

- torchvision, where vLLM is installed, must be importable: its missing operator schemas are declared in it, after which
  its Python parts (transforms, io fallbacks) work; the compiled operators stay unavailable and say so when called.
  Elsewhere it is not needed and is uninstalled (transformers then reads images with Pillow);
- torchaudio and torchcodec are for sound and video, which envhub does not use: a broken one is uninstalled.

Standard library only. `python -m envhub.cli.repair` repairs the environment that it runs in.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from envhub.cli.probes import probe_import

MEDIA_PACKAGES = ("torchvision", "torchaudio", "torchcodec")

_MISSING_OPERATOR = re.compile(r"operator torchvision::(\w+) does not exist")
_UNLOADABLE_LIBRARY = re.compile(r"[Cc]ould not load th|cannot open shared object|undefined symbol")
_MARK = "# Operator schemas declared by envhub: the compiled operators of this package do not fit the installed torch."
_DECLARATION = f"""

{_MARK}
if not _has_ops():
    _ENVHUB_SCHEMAS = torch.library.Library("torchvision", "FRAGMENT")
    for _schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
        " int sampling_ratio, bool aligned) -> Tensor",
    ):
        if not hasattr(torch.ops.torchvision, _schema.split("(")[0]):
            _ENVHUB_SCHEMAS.define(_schema)
"""


@dataclass(frozen=True, slots=True)
class PackageState:
    """How an installed package fares beside the installed torch.

    `status` is `absent`, `works`, `declared` (works thanks to declared operator schemas), `mismatched` (compiled for
    another torch: what `repair_media_packages` cures) or `broken` (fails to import for any other reason).
    """

    package: str
    status: str
    version: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about a package: `action` is `none`, `declared`, `uninstalled` or `failed`."""

    package: str
    action: str
    detail: str


def media_package_states() -> list[PackageState]:
    """Look at torchvision, torchaudio and torchcodec in this interpreter's environment, each in another process."""
    return [_state(package) for package in MEDIA_PACKAGES]


def repair_media_packages() -> list[Repair]:
    """Cure the mismatched ones of torchvision, torchaudio and torchcodec; leave what works as it is."""
    repairs = []
    needs_torchvision = importlib.util.find_spec("vllm") is not None
    for state in media_package_states():
        if state.status in ("absent", "works", "declared"):
            repairs.append(Repair(state.package, "none", f"{state.package} {state.version or 'is'} {state.status}"))
        elif state.status == "broken":
            detail = f"{state.package} {state.version} does not import, for a reason of its own: {state.error}"
            repairs.append(Repair(state.package, "failed", detail))
        elif state.package == "torchvision" and needs_torchvision:
            repairs.append(_declare_operators(state))
        else:
            repairs.append(_uninstall(state))
    return repairs


def _state(package: str) -> PackageState:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return PackageState(package, "absent")
    probe = probe_import(f"import {package}")
    if probe.ok:
        declared = package == "torchvision" and _MARK in _extension_text()
        return PackageState(package, "declared" if declared else "works", version)
    mismatched = _MISSING_OPERATOR.search(probe.error) or _UNLOADABLE_LIBRARY.search(probe.error)
    return PackageState(package, "mismatched" if mismatched else "broken", version, probe.error)


def _declare_operators(state: PackageState) -> Repair:
    extension = _extension_file()
    operator = _MISSING_OPERATOR.search(state.error)
    text = _extension_text()
    if extension is None or operator is None or _MARK in text:
        detail = f"torchvision {state.version} cannot be made to import: {state.error}"
        return Repair(state.package, "failed", detail)
    try:
        _replace_text(extension, text.rstrip("\n") + _DECLARATION)
    except OSError as error:
        return Repair(state.package, "failed", f"cannot write {extension}: {error.strerror}")
    probe = probe_import("import torchvision.transforms")
    if not probe.ok:
        _replace_text(extension, text)
        return Repair(state.package, "failed", f"torchvision {state.version} still does not import: {probe.error}")
    detail = f"torchvision {state.version} did not fit the installed torch: declared its missing operators"
    return Repair(state.package, "declared", detail)


def _uninstall(state: PackageState) -> Repair:
    command = [sys.executable, "-m", "pip", "uninstall", "--yes", "--quiet", state.package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        return Repair(state.package, "failed", f"pip could not uninstall it: {done.stderr.strip()[-300:]}")
    detail = f"{state.package} {state.version} does not fit the installed torch and is not needed: uninstalled it"
    return Repair(state.package, "uninstalled", detail)


def _extension_text() -> str:
    path = _extension_file()
    return "" if path is None else path.read_text(encoding="utf-8")


def _extension_file() -> Path | None:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("extension.py")
    return path if path.is_file() else None


def _replace_text(path: Path, text: str) -> None:
    # A new file instead of writing in place: installers share files of several environments by hard links.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(path.stat().st_mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def main() -> int:
    """Repair and say what was done. Exit code 1 when something is still broken."""
    repairs = repair_media_packages()
    for repair in repairs:
        if repair.action != "none":
            print(repair.detail)
    return 1 if any(repair.action == "failed" for repair in repairs) else 0


if __name__ == "__main__":
    sys.exit(main())
