"""Finds what a Trainium lane needs, or says why it cannot be used and what to do; before any calculation.

Cheap questions first (device, versions from the packages' metadata, tools on PATH), and only if all are answered the
packages are imported, in a process of its own: a broken native library then costs an error message and not the run.
Packages are recognised by version, never by presence: PyPI's packages of these names are placeholders that raise on
import. Sources: the AWS Neuron setup guides and release notes for SDK 2.29 to 2.33.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache

from dfmp2.trainium.launch import environment
from dfmp2.trainium.launch.environment import HARDWARE, HERE, Host

PLACEHOLDERS = {"nki": "0.0.1", "neuronx-cc": "1.0.post1", "torch-neuronx": "1.0", "libneuronxla": "1.0"}
INDEX = "install it from AWS's own package index, see the Neuron setup guide"
OLDEST, NEWEST = (0, 3), (0, 7)  # releases whose signatures the kernels are checked against
BINDINGS = (("nrtpy", ("Nrtpy", "Spike")), ("spike", ("Spike",)))  # module, prefixes of Model and Tensor, newest first
IMPORT_SECONDS = 90.0  # a first import from a cold disk takes tens of seconds
NEEDED = {  # lane -> distributions in the interpreter that runs, in the one that compiles
    "nki": ((), ("nki", "neuronx-cc")),
    "nki-xla": (("torch-neuronx", "torch-xla", "libneuronxla", "nki", "neuronx-cc"), ()),
    "nki-call": (("nki", "neuronx-cc"), ()),
    "nki-simulator": (("nki",), ()),
}
TOOLS = {"nki": ("neuronx-cc",), "nki-xla": ("neuronx-cc", "libneuronpjrt-path"), "nki-call": ("neuronx-cc",)}
VERSIONS = "import importlib.metadata as m, json, sys\nout = {}\nfor n in json.loads(sys.argv[1]):\n"
VERSIONS += "    try: out[n] = m.version(n)\n    except m.PackageNotFoundError: pass\nprint(json.dumps(out))"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a lane cannot be used, and what to do about it."""

    reason: str
    fix: str


def refusal(lane: str, host: Host = HERE) -> str | None:
    """All problems of a lane in one line, None where there are none."""
    return told(problems(lane, host)) or None


def told(found: tuple[Problem, ...]) -> str:
    """Problems in one line, those with the same fix together."""
    fixes = dict.fromkeys(problem.fix for problem in found)
    reasons = {fix: ", ".join(problem.reason for problem in found if problem.fix == fix) for fix in fixes}
    return "; ".join(f"{reason}: {fix}" for fix, reason in reasons.items())


def problems(lane: str, host: Host = HERE, *, compiled: bool = False, importing: bool = True) -> tuple[Problem, ...]:
    """What keeps a lane from being used here.

    Parameters
    ----------
    compiled : every program is in the cache, so that nothing needs to be compiled
    importing : also import the packages, once everything else is right
    """
    cheap = [*_variables(lane, host), *(_device(host) if lane in HARDWARE else [])]
    runs, compiles = NEEDED[lane]
    cheap += _packages(runs, versions(runs, host))
    cheap += [] if compiled or not compiles else _packages(compiles, versions(compiles, host, host.python))
    cheap += [] if compiled or any("installed" in problem.reason for problem in cheap) else _tools(lane, host)
    if lane == "nki-xla":
        cheap += _torch(versions(("torch", "torch-xla"), host))
    if lane == "nki" and bindings(host) is None:
        reason = "the runtime bindings nrtpy are absent (neuronx-cc brings them since SDK 2.32)"
        cheap.append(Problem(reason, f"{INDEX}; where they clash with nki, compile with DFMP2_NKI_PYTHON=PYTHON"))
    return tuple(cheap) or (tuple(_imports(lane, host, compiled)) if importing else ())


def compiler_problems(host: Host = HERE, target: str = "trn1") -> tuple[Problem, ...]:
    """What keeps kernels from being compiled here; no device is needed."""
    needed = NEEDED["nki"][1]
    absent = _packages(needed, versions(needed, host, host.python))
    cheap = [*_variables("nki", host), *(absent or _tools("nki", host))]
    return tuple(cheap) or tuple(_broken(host.python, ("nki",), environment.settings("nki", target, host)))


def device_target(host: Host = HERE) -> str | None:
    """ "trn1" or "trn2" by the instance type or the chip's own entry in sysfs, None where neither tells."""
    family = host.text("/sys/devices/virtual/dmi/id/product_name").split(".")[0]
    known = {"trn1": "trn1", "trn1n": "trn1", "inf2": "trn1", "trn2": "trn2", "trn2u": "trn2"}
    chip = host.text("/sys/devices/virtual/neuron_device/neuron0/neuron_core0/info/architecture/arch_type")
    return known.get(family) or {"NCv2": "trn1", "NCv3": "trn2"}.get(chip)


def versions(names: tuple[str, ...], host: Host = HERE, python: str = sys.executable) -> dict[str, str]:
    """Versions of installed distributions by their metadata, nothing imported; absent ones are left out."""
    if python == sys.executable:
        return {name: found for name in names if (found := host.version(name)) is not None}
    return dict(_foreign_versions(names, python))


def bindings(host: Host = HERE) -> tuple[str, tuple[str, ...]] | None:
    """Module of the runtime bindings that is installed and the prefixes its classes may have; nothing is imported."""
    for module, prefixes in BINDINGS:
        if host.version(module) is not None or any(_has(folder, module) for folder in sys.path):
            return module, prefixes
    return None


def _has(folder: str, module: str) -> bool:
    return os.path.isfile(os.path.join(folder, module, "__init__.py"))


@lru_cache(maxsize=16)
def _foreign_versions(names: tuple[str, ...], python: str) -> tuple[tuple[str, str], ...]:
    try:
        done = subprocess.run(
            [python, "-P", "-c", VERSIONS, json.dumps(names)], capture_output=True, text=True, timeout=IMPORT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(json.loads(done.stdout).items()) if done.returncode == 0 else ()


def _variables(lane: str, host: Host) -> list[Problem]:
    """Variables that would make a lane something else than it says."""
    env, found = host.environ, []
    wanted = env.get("NEURON_PLATFORM_TARGET_OVERRIDE")
    here = device_target(host) if host.devices() else None
    if lane in HARDWARE and host.flag("NKI_SIMULATOR") is not False:
        found.append(
            Problem(f"NKI_SIMULATOR={env['NKI_SIMULATOR']}: kernels would be simulated, not run", "unset NKI_SIMULATOR")
        )
    if lane == "nki-xla" and env.get("PJRT_DEVICE", "NEURON").upper() != "NEURON":
        found.append(Problem(f"PJRT_DEVICE={env['PJRT_DEVICE']}: torch-xla would not use the device", "unset it"))
    if lane in HARDWARE and wanted and here and _chip(wanted) != here:
        found.append(Problem(f"NEURON_PLATFORM_TARGET_OVERRIDE={wanted}, but the device is a {here}", "unset it"))
    given = env.get("NEURON_RT_VISIBLE_CORES")
    if lane in HARDWARE and given and environment.cores(given) is None:
        found.append(Problem(f"NEURON_RT_VISIBLE_CORES={given!r} names no cores", "give 0, 0,1 or 0-1"))
    return found


def _chip(name: str) -> str:
    return {"gen2": "trn1", "inf2": "trn1", "gen3": "trn2"}.get(name, name)


def _device(host: Host) -> list[Problem]:
    devices = host.devices()
    if not devices:
        return [
            Problem("there is no Neuron device (/dev/neuron*)", "run on a Trn1 instance, or use nki-interpreter or cpu")
        ]
    shut = [path.name for path in devices if not os.access(path, os.R_OK | os.W_OK)]
    if len(shut) == len(devices):
        return [Problem(f"{', '.join(shut)} may not be opened", "join the group that owns /dev/neuron*")]
    if device_target(host) is None:
        return [Problem("the chip is neither Trainium1 nor Trainium2", "kernels exist for these two; use cpu")]
    return []


def _packages(names: tuple[str, ...], found: dict[str, str]) -> list[Problem]:
    bad = []
    for name in names:
        version = found.get(name)
        if version is None:
            bad.append(Problem(f"{name} is not installed", INDEX))
        elif version == PLACEHOLDERS.get(name):
            bad.append(
                Problem(
                    f"{name} {version} from PyPI is a placeholder that raises on import",
                    f"pip uninstall {name} and {INDEX}",
                )
            )
        elif name == "nki" and not OLDEST <= _release(version) <= NEWEST:
            supported = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
            bad.append(
                Problem(f"nki {version} is not one of the releases the kernels are written for", f"use {supported}")
            )
    return bad


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _tools(lane: str, host: Host) -> list[Problem]:
    path = environment.search_path(host)
    lost = [name for name in TOOLS.get(lane, ()) if shutil.which(name, path=path) is None]
    fix = f"put the bin folder of the environment that holds {' and '.join(lost)} in front of PATH"
    return [Problem(f"{' and '.join(lost)} cannot be found on PATH", fix)] if lost else []


def _torch(found: dict[str, str]) -> list[Problem]:
    torch, xla = found.get("torch"), found.get("torch-xla")
    if torch is None:
        return [Problem("torch is not installed", f"install torch {xla or '2.9'}")]
    if xla is not None and _release(torch) != _release(xla):
        return [Problem(f"torch {torch} and torch-xla {xla} do not belong together", f"install torch {xla}")]
    return []


def _imports(lane: str, host: Host, compiled: bool) -> list[Problem]:
    """Import what the lane uses, in a process of its own; the interpreter that compiles may be another one."""
    variables = environment.settings(lane, device_target(host) or "trn1", host)
    if lane == "nki":
        bound = bindings(host)
        found = _broken(sys.executable, (bound[0],), variables) if bound else []
        return found or ([] if compiled else _broken(host.python, ("nki",), variables))
    modules = ("torch_xla", "libneuronxla", "nki") if lane == "nki-xla" else ("nki",)
    return _broken(sys.executable, modules, variables)


def _broken(python: str, modules: tuple[str, ...], variables: dict[str, str]) -> list[Problem]:
    reason = _import_error(python, modules, tuple(sorted({**os.environ, **variables}.items())))
    return [] if reason is None else [Problem(reason, "reinstall it; dfmp2 doctor checks PATH and libraries")]


@lru_cache(maxsize=16)
def _import_error(python: str, modules: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> str | None:
    code = f"import {', '.join(modules)}"
    try:
        done = subprocess.run(
            [python, "-P", "-c", code], capture_output=True, text=True, env=dict(variables), timeout=IMPORT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"'{code}' did not finish in {IMPORT_SECONDS:.0f} s"
    except OSError as error:
        return f"{python} cannot be started ({error.strerror})"
    if done.returncode == 0:
        return None
    last = done.stderr.strip().splitlines()[-1:] or [f"the process ended with {done.returncode}"]
    return f"'{code}' fails ({last[0][:300]})"
