"""What `dfmp2 doctor` says of AWS Trainium: devices, packages and the traps around them. One line without a device.

Nothing is imported: PyPI's packages of these names are placeholders that raise on import, so they are recognised by
their versions. Sources: the AWS Neuron setup guides for SDK 2.31 to 2.33.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from dfmp2.trainium.launch import toolchain
from dfmp2.trainium.launch.environment import LIBRARIES, TOOLS, Host, cache_folder
from dfmp2.trainium.launch.toolchain import PLACEHOLDERS

OK, WARN = "ok", "warn"
INDEX = "pip install from AWS's own index, see the Neuron setup guide"
PACKAGES = ("nki", "neuronx-cc", "torch-neuronx", "libneuronxla", "torch-xla", "nrtpy")
PRODUCT = "/sys/devices/virtual/dmi/id/product_name"
CACHE = "/var/tmp/neuron-compile-cache"

Finding = tuple[str, str, str, str]  # what was looked at, OK or WARN, what was found, what to do about it


def diagnose(surroundings: Any) -> list[Finding]:
    """One quiet line without a device, else one finding per question.

    Parameters
    ----------
    surroundings : with environ, root, prefix and version, as `dfmp2.validation.doctor.Surroundings`
    """
    s = surroundings
    host = Host(s.environ, s.root, s.prefix, s.version)
    devices, fake = host.devices(), [name for name, version in PLACEHOLDERS.items() if host.version(name) == version]
    if not devices:
        if fake:
            return [("Neuron", WARN, f"no Neuron device; {_named(fake)}", _replace(fake))]
        return [("Neuron", OK, "no Neuron device", "")]
    return [
        ("Neuron device", *_device(host, devices)),
        ("Neuron packages", *_packages(host, fake)),
        ("Neuron PATH", *_path(host)),
        ("Neuron variables", *_variables(host, not s.environ.get("HOME"))),
        ("Neuron cache", *_caches(host)),
        ("Neuron lanes", *_lanes(host)),
    ]


def _device(host: Host, devices: list[Path]) -> tuple[str, str, str]:
    detail = f"{len(devices)} device{'s' * (len(devices) > 1)} ({host.text(PRODUCT) or 'unknown instance'})"
    shut = [device.name for device in devices if not os.access(device, os.R_OK | os.W_OK)]
    if shut:
        return WARN, f"{detail}: {', '.join(shut)} may not be opened", "join the group of /dev/neuron*"
    return OK, detail, ""


def _packages(host: Host, fake: list[str]) -> tuple[str, str, str]:
    """Which Neuron packages are there, and are they real?"""
    found = {name: version for name in PACKAGES if (version := host.version(name)) is not None}
    detail = ", ".join(f"{name} {version}" for name, version in found.items()) or "none installed"
    torch = host.version("torch")
    if fake:
        return WARN, f"{detail}: {_named(fake)}", _replace(fake)
    if "nki" not in found and "nrtpy" not in found:
        return WARN, f"{detail}: neither nki (to compile) nor nrtpy (to run)", INDEX
    if "nki" in found and "nrtpy" in found:
        return WARN, f"{detail}: nki and nrtpy clash in one environment", "give each an environment"
    if "torch-xla" in found and torch is not None and not torch.startswith(found["torch-xla"].rsplit(".", 1)[0]):
        return WARN, f"{detail}, but torch {torch}", f"install torch {found['torch-xla']} beside it"
    return OK, detail, ""


def _path(host: Host) -> tuple[str, str, str]:
    """Are the tools found that the packages call by name?"""
    path = [Path(entry) for entry in host.environ.get("PATH", "").split(os.pathsep) if entry]
    own = host.prefix / "bin"
    helpers = [name for name in ("libneuronpjrt-path", "neuronx-cc") if (own / name).exists()]
    lost = [name for name in helpers if _first(name, path) != own / name]
    if lost:
        verb = "is" if len(lost) == 1 else "are"
        return WARN, f"{', '.join(lost)} of {own} {verb} not the first on PATH", f"export PATH={own}:$PATH"
    if _first("neuron-ls", path) is None:
        there = (host.root / TOOLS.lstrip("/")).is_dir()
        fix = f"export PATH={TOOLS}:$PATH" if there else "install aws-neuronx-tools"
        return WARN, "neuron-ls is not on PATH", fix
    if host.version("nrtpy") is not None and LIBRARIES not in host.environ.get("LD_LIBRARY_PATH", "").split(":"):
        return WARN, "nrtpy does not find its library", f"export LD_LIBRARY_PATH={LIBRARIES}:$LD_LIBRARY_PATH"
    return OK, f"neuron-ls and the tools of {own} are found", ""


def _variables(host: Host, homeless: bool) -> tuple[str, str, str]:
    """Variables that change numbers, devices or what runs at all."""
    env, product = host.environ, host.text(PRODUCT)
    kind, target, flags = (
        product.split(".")[0],
        env.get("NEURON_PLATFORM_TARGET_OVERRIDE"),
        env.get("NEURON_CC_FLAGS", ""),
    )
    problems = (
        (
            env.get("NKI_SIMULATOR", "0") not in ("", "0"),
            f"NKI_SIMULATOR={env.get('NKI_SIMULATOR')}: kernels would be simulated, not run",
            "unset NKI_SIMULATOR",
        ),
        (
            env.get("PJRT_DEVICE", "NEURON").upper() != "NEURON",
            f"PJRT_DEVICE={env.get('PJRT_DEVICE')}: torch-xla would not use the device",
            "export PJRT_DEVICE=NEURON",
        ),
        (
            "--auto-cast=none" not in re.sub(r"--auto-cast\s+", "--auto-cast=", flags),
            f"NEURON_CC_FLAGS={flags!r} lacks --auto-cast=none: older compilers round float32 products to bfloat16",
            'export NEURON_CC_FLAGS="--auto-cast=none --retry_failed_compilation"',
        ),
        (
            target is not None and kind.startswith("trn") and target != kind,
            f"NEURON_PLATFORM_TARGET_OVERRIDE={target} on {product}",
            "unset NEURON_PLATFORM_TARGET_OVERRIDE",
        ),
        (
            env.get("NEURON_RT_STOCHASTIC_ROUNDING_EN", "0") not in ("", "0"),
            "NEURON_RT_STOCHASTIC_ROUNDING_EN is on: results differ from run to run",
            "export NEURON_RT_STOCHASTIC_ROUNDING_EN=0",
        ),
        (
            env.get("NEURON_LOGICAL_NC_CONFIG", "1") != "1",
            f"NEURON_LOGICAL_NC_CONFIG={env.get('NEURON_LOGICAL_NC_CONFIG')}: kernels are written for one physical "
            "core, and dfmp2 sets 1",
            "unset NEURON_LOGICAL_NC_CONFIG",
        ),
        (homeless, "HOME is not set: caches go to the home of the user's account", "export HOME=your home folder"),
    )
    found = [(text, fix) for wrong, text, fix in problems if wrong]
    if found:
        texts, fixes = zip(*found, strict=True)
        return WARN, "; ".join(texts), "; ".join(fixes)
    return OK, f"NEURON_CC_FLAGS={flags}", ""


def _caches(host: Host) -> tuple[str, str, str]:
    """Can compiled kernels be kept?"""
    url = host.environ.get("NEURON_COMPILE_CACHE_URL", CACHE)
    if url.startswith("s3://"):
        return OK, f"{url} (not looked at)", ""
    own = cache_folder(host)
    if not _writable(host.root / url.lstrip("/") if url == CACHE else Path(url)):
        return WARN, f"{url} cannot be written", "export NEURON_COMPILE_CACHE_URL=a folder of yours"
    if not _writable(own):
        return WARN, f"{own} for compiled programs cannot be written", "export DFMP2_NEFF_CACHE=a folder"
    return OK, f"{url}; compiled programs of dfmp2 in {own}", ""


def _lanes(host: Host) -> tuple[str, str, str]:
    """Which of the ways to launch kernels can be used, as a run would find out."""
    real = host.root == Path("/")  # a planted machine has nothing to import
    found = {lane: toolchain.problems(lane, host, importing=real) for lane in ("nki", "nki-xla")}
    usable = [lane for lane, problems in found.items() if not problems]
    told = [f"{lane}: {problems[0].reason}" for lane, problems in found.items() if problems]
    detail = "; ".join([*(f"{lane} can be used" for lane in usable), *told])
    return (OK, detail, "") if usable else (WARN, detail, "; ".join(problems[0].fix for problems in found.values()))


def _writable(folder: Path) -> bool:
    """Whether a folder can be written, or made where it is not there yet."""
    return os.access(next(place for place in (folder, *folder.parents) if place.exists()), os.W_OK)


def _named(fake: list[str]) -> str:
    listed = ", ".join(f"{name} {PLACEHOLDERS[name]}" for name in fake)
    return f"{listed} from PyPI {'is a placeholder that fails' if len(fake) == 1 else 'are placeholders that fail'}"


def _replace(fake: list[str]) -> str:
    return f"pip uninstall {' '.join(fake)}; for the real {'one' if len(fake) == 1 else 'ones'} {INDEX}"


def _first(name: str, path: list[Path]) -> Path | None:
    return next((entry / name for entry in path if os.access(entry / name, os.X_OK)), None)
