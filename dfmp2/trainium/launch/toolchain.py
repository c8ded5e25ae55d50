"""Check the requirements of a Trainium lane before any calculation, and report problems with their
fixes.

Cheap checks come first (device, versions from package metadata, tools on PATH); only if all pass
are the packages imported, in a separate process, so that a broken native library causes an error
message and does not kill the run. Packages are recognised by version, not by presence, because
PyPI's packages of these names are placeholders that raise on import. Sources: the AWS Neuron setup
guides and release notes for SDK 2.29 to 2.33. `dfmp2 doctor` makes the same checks and a few for
common traps (`diagnose`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dfmp2.trainium.interpreter.rules import CHIP, GENERATION
from dfmp2.trainium.launch import environment
from dfmp2.trainium.launch.environment import HARDWARE, HERE, LIBRARIES, Host
from dfmp2.units import counted_text

PLACEHOLDERS = {
    "nki": "0.0.1",
    "neuronx-cc": "1.0.post1",
    "torch-neuronx": "1.0",
    "libneuronxla": "1.0",
}
INDEX = (
    "install it from AWS's own package index (pip --extra-index-url "
    "https://pip.repos.neuron.amazonaws.com)"
)
# Version of nki installed by the extras neuron and neuron-trn2
RELEASES = {"trn1": (0, 6), "trn2": (0, 7)}
IMPORT_SECONDS = 90.0  # the first import from a cold disk takes tens of seconds
NEEDED = {  # lane -> distributions in the interpreter that runs, and in the one that compiles
    "nki": ((), ("nki", "neuronx-cc")),
    "nki-xla": (("torch-neuronx", "torch-xla", "libneuronxla", "nki", "neuronx-cc"), ()),
    "nki-simulator": (("nki",), ()),
}
TOOLS = {
    "nki": ("neuronx-cc",),
    "nki-xla": ("neuronx-cc", "libneuronpjrt-path"),
}
VERSIONS = (
    "import importlib.metadata as m, json, sys\nout = {}\nfor n in json.loads(sys.argv[1]):\n"
    "    try: out[n] = m.version(n)\n    except m.PackageNotFoundError: "
    "pass\nprint(json.dumps(out))"
)
PACKAGES = ("nki", "neuronx-cc", "torch-neuronx", "libneuronxla", "torch-xla", "nrtpy")
PRODUCT = "/sys/devices/virtual/dmi/id/product_name"
OK, WARN = "ok", "warn"
# Subject, OK or WARN, finding, remedy
Finding = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a lane cannot be used, and what to do about it."""

    reason: str
    fix: str


def refusal(lane: str) -> str | None:
    """All problems of a lane in one line, None if there are none."""
    return told(problems(lane)) or None


def told(found: tuple[Problem, ...]) -> str:
    """Problems in one line, grouped by fix."""
    fixes = dict.fromkeys(problem.fix for problem in found)
    reasons = {
        fix: ", ".join(problem.reason for problem in found if problem.fix == fix) for fix in fixes
    }
    return "; ".join(f"{reason}: {fix}" for fix, reason in reasons.items())


def problems(
    lane: str, host: Host = HERE, *, compiled: bool = False, importing: bool = True
) -> tuple[Problem, ...]:
    """Problems that prevent the use of a lane here.

    Parameters
    ----------
    compiled : every program is in the cache, so nothing needs to be compiled
    importing : also import the packages, if everything else is right
    """
    cheap = [*_variables(lane, host), *(_device(host) if lane in HARDWARE else [])]
    runs, compiles = NEEDED[lane]
    target = device_target(host) or ""
    cheap += _packages(runs, toolchain_versions(runs, host), target)
    if compiles and not compiled:
        cheap += _packages(compiles, toolchain_versions(compiles, host, host.python), target)
    if not compiled and not any("installed" in problem.reason for problem in cheap):
        cheap += _tools(lane, host)
    if lane == "nki-xla":
        cheap += _torch(toolchain_versions(("torch", "torch-xla"), host))
    if lane == "nki" and not has_bindings(host):
        reason = "the runtime bindings nrtpy are absent (neuronx-cc brings them since SDK 2.32)"
        cheap.append(
            Problem(
                reason, f"{INDEX}; where they clash with nki, compile with DFMP2_NKI_PYTHON=PYTHON"
            )
        )
    return tuple(cheap) or (tuple(_imports(lane, host, compiled)) if importing else ())


def compiler_problems(target: str) -> tuple[Problem, ...]:
    """Problems that prevent compiling kernels here; no device is needed."""
    needed = NEEDED["nki"][1]
    absent = _packages(needed, toolchain_versions(needed, python=HERE.python), target)
    cheap = [*_variables("nki", HERE), *(absent or _tools("nki", HERE))]
    return tuple(cheap) or tuple(
        _broken(HERE.python, ("nki",), environment.compiler_variables(target))
    )


def device_target(host: Host = HERE) -> str | None:
    """ "trn1" or "trn2", from the instance type or the chip's entry in sysfs; None if neither is
    known."""
    family = host.text(PRODUCT).split(".")[0]
    chip = host.text(
        "/sys/devices/virtual/neuron_device/neuron0/neuron_core0/info/architecture/arch_type"
    )
    return CHIP.get(GENERATION.get(family) or {"NCv2": "gen2", "NCv3": "gen3"}.get(chip, ""))


def toolchain_versions(
    names: tuple[str, ...], host: Host = HERE, python: str = sys.executable
) -> dict[str, str]:
    """Versions of installed distributions from their metadata, without imports; missing ones are
    omitted."""
    if python == sys.executable:
        return {name: found for name in names if (found := host.version(name)) is not None}
    return dict(_foreign_versions(names, python))


def has_bindings(host: Host = HERE) -> bool:
    """Whether the runtime bindings nrtpy are installed, alone or with neuronx-cc; without
    imports."""
    module = Path("nrtpy", "__init__.py")
    beside = any(Path(folder, module).is_file() for folder in sys.path)
    return beside or host.version("nrtpy") is not None


@lru_cache(maxsize=16)
def _foreign_versions(names: tuple[str, ...], python: str) -> tuple[tuple[str, str], ...]:
    try:
        done = subprocess.run(
            [python, "-P", "-c", VERSIONS, json.dumps(names)],
            capture_output=True,
            text=True,
            env=environment.with_package(os.environ),
            timeout=IMPORT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if done.returncode == 0:
        return tuple(json.loads(done.stdout).items())
    return ()


def _variables(lane: str, host: Host) -> list[Problem]:
    """Problems with variables that would turn a lane into something else."""
    if lane not in HARDWARE:
        return []
    env = host.environ
    here = device_target(host)
    wanted = env.get("NEURON_PLATFORM_TARGET_OVERRIDE", "")
    cores = env.get("NEURON_RT_VISIBLE_CORES") or "0"
    traps = {  # variable -> whether its value is wrong, its effect, the remedy
        "NKI_SIMULATOR": (
            host.flag("NKI_SIMULATOR") is not False,
            "kernels would be simulated, not run",
            "unset NKI_SIMULATOR",
        ),
        "PJRT_DEVICE": (
            lane == "nki-xla" and env.get("PJRT_DEVICE", "NEURON").upper() != "NEURON",
            "torch-xla would not use the device",
            "unset it, or export PJRT_DEVICE=NEURON",
        ),
        "NEURON_PLATFORM_TARGET_OVERRIDE": (
            wanted and here and host.devices() and CHIP.get(GENERATION.get(wanted, "")) != here,
            f"but the device is a {here}",
            "unset NEURON_PLATFORM_TARGET_OVERRIDE",
        ),
        "NEURON_RT_VISIBLE_CORES": (
            environment.visible_cores(cores) is None,
            "this names no cores",
            "give 0, 0,1 or 0-1",
        ),
    }
    return [
        Problem(f"{name}={env.get(name, '')}: {why}", fix)
        for name, (wrong, why, fix) in traps.items()
        if wrong
    ]


def _device(host: Host) -> list[Problem]:
    devices = host.devices()
    if not devices:
        return [
            Problem(
                "there is no Neuron device (/dev/neuron*)",
                "run on a Trn1 instance, or use nki-interpreter or cpu",
            )
        ]
    if not any(os.access(path, os.R_OK | os.W_OK) for path in devices):
        return _shut(devices)
    if device_target(host) is None:
        return [
            Problem(
                "the chip is neither Trainium1 nor Trainium2",
                "kernels exist for these two; use cpu",
            )
        ]
    return []


def _shut(devices: list[Path]) -> list[Problem]:
    """Problems with devices that cannot be opened."""
    shut = [path.name for path in devices if not os.access(path, os.R_OK | os.W_OK)]
    if shut:
        return [
            Problem(f"{', '.join(shut)} may not be opened", "join the group that owns /dev/neuron*")
        ]
    return []


def _packages(names: tuple[str, ...], found: dict[str, str], target: str = "") -> list[Problem]:
    """Problems with packages that are missing, placeholders, or not of the chip's release; of any
    release for ""."""
    fitting = [release for chip, release in RELEASES.items() if target in ("", chip)]
    bad = []
    for name in names:
        version = found.get(name)
        if version is None:
            bad.append(Problem(f"{name} is not installed", INDEX))
        elif version == PLACEHOLDERS.get(name):
            reason = f"{name} {version} from PyPI is a placeholder that raises on import"
            bad.append(Problem(reason, f"pip uninstall {name} and {INDEX}"))
        elif name == "nki" and _release(version) not in fitting:
            wanted = " or ".join(".".join(map(str, release)) for release in fitting)
            reason = f"nki {version} is not the release that the kernels are written for"
            extra = "neuron-trn2" if target == "trn2" else "neuron"
            bad.append(Problem(reason, f"install nki {wanted}: the extra {extra}"))
    return bad


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match:
        return (int(match[1]), int(match[2]))
    return (0, 0)


def _tools(lane: str, host: Host) -> list[Problem]:
    path = environment.search_path(host)
    lost = " and ".join(
        name for name in TOOLS.get(lane, ()) if shutil.which(name, path=path) is None
    )
    if lost:
        return [
            Problem(
                f"{lost} cannot be found on PATH",
                f"put the bin folder of the environment that holds {lost} in front of PATH",
            )
        ]
    return []


def _torch(found: dict[str, str]) -> list[Problem]:
    torch, xla = found.get("torch"), found.get("torch-xla")
    if torch is None:
        return [Problem("torch is not installed", f"install torch {xla or '2.9'}")]
    if xla is not None and _release(torch) != _release(xla):
        return [
            Problem(
                f"torch {torch} and torch-xla {xla} do not belong together", f"install torch {xla}"
            )
        ]
    return []


def _imports(lane: str, host: Host, compiled: bool) -> list[Problem]:
    """Problems on importing the lane's packages in a separate process; the compiling interpreter
    may be another one."""
    variables = environment.settings(lane, device_target(host) or "trn1", host)
    if lane == "nki":
        found = _broken(sys.executable, ("nrtpy",), variables)
        if found or compiled:
            return found
        target = device_target(host) or "trn1"
        return _broken(host.python, ("nki",), environment.compiler_variables(target, host))
    modules: tuple[str, ...] = ("nki",)
    if lane == "nki-xla":
        modules = ("torch_xla", "libneuronxla", "nki")
    return _broken(sys.executable, modules, variables)


def _broken(python: str, modules: tuple[str, ...], variables: dict[str, str]) -> list[Problem]:
    reason = _import_error(python, modules, tuple(sorted({**os.environ, **variables}.items())))
    if reason is None:
        return []
    return [Problem(reason, f"reinstall it, or put {LIBRARIES} on LD_LIBRARY_PATH")]


@lru_cache(maxsize=16)
def _import_error(
    python: str, modules: tuple[str, ...], variables: tuple[tuple[str, str], ...]
) -> str | None:
    code = f"import {', '.join(modules)}"
    try:
        done = subprocess.run(
            [python, "-P", "-c", code],
            capture_output=True,
            text=True,
            env=dict(variables),
            timeout=IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"'{code}' did not finish in {IMPORT_SECONDS:.0f} s"
    except OSError as error:
        return f"{python} cannot be started ({error.strerror})"
    if done.returncode == 0:
        return None
    last = done.stderr.strip().splitlines()[-1:] or [f"the process ended with {done.returncode}"]
    return f"'{code}' fails ({last[0][:300]})"


def diagnose(surroundings: Any) -> list[Finding]:
    """Findings for `dfmp2 doctor`: one quiet line without a device, otherwise one finding per
    check.

    Parameters
    ----------
    surroundings : has environ, root, prefix and version, as in
        `dfmp2.validation.doctor.Surroundings`
    """
    host = Host(
        environ=surroundings.environ,
        root=surroundings.root,
        prefix=surroundings.prefix,
        version=surroundings.version,
    )
    devices = host.devices()
    found = toolchain_versions(PACKAGES, host)
    fake = [problem for problem in _packages(PACKAGES, found) if "placeholder" in problem.reason]
    if not devices:
        return [_finding("Neuron", "no Neuron device", fake)]
    product = f"{counted_text(len(devices), 'device')} ({host.text(PRODUCT) or 'unknown instance'})"
    installed = (
        ", ".join(f"{name} {version}" for name, version in found.items()) or "none installed"
    )
    real = host.root == Path("/")  # a fake machine has nothing to import
    kept = {lane: problems(lane, host, importing=real) for lane in ("nki", "nki-xla")}
    lanes = "; ".join(
        f"{lane}: {found[0].reason}" if found else f"{lane} can be used"
        for lane, found in kept.items()
    )
    of_lanes: Finding = ("Neuron lanes", OK, lanes, "")
    if all(kept.values()):
        of_lanes = ("Neuron lanes", WARN, lanes, _fixes(*kept.values()))
    return [
        _finding("Neuron device", product, _shut(devices)),
        _finding("Neuron packages", installed, fake),
        of_lanes,
    ]


def _finding(name: str, detail: str, found: list[Problem]) -> Finding:
    """A finding that is OK, or lists all problems after the detail."""
    text = "; ".join([detail, *(problem.reason for problem in found)])
    return name, WARN if found else OK, text, _fixes(found)


def _fixes(*found: Sequence[Problem]) -> str:
    return "; ".join(dict.fromkeys(problem.fix for some in found for problem in some))
