"""AWS Trainium: devices, packages and the traps around them. Silent where there is no device.

Nothing is imported: PyPI's packages of these names are placeholders that raise on import, so they are recognised by
their versions. Sources: the AWS Neuron setup guides for SDK 2.31 to 2.33.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from dfmp2.backends.nki import toolchain
from dfmp2.backends.nki.environment import Host, cache_folder
from dfmp2.doctor.finding import OK, WARN, Finding, Surroundings

INDEX = "pip install from AWS's own index, see the Neuron setup guide"
PACKAGES = ("nki", "neuronx-cc", "torch-neuronx", "libneuronxla", "torch-xla", "nrtpy")
PLACEHOLDERS = {"nki": "0.0.1", "neuronx-cc": "1.0.post1", "torch-neuronx": "1.0", "libneuronxla": "1.0"}
TOOLS_FOLDER = "/opt/aws/neuron/bin"
PRODUCT = "/sys/devices/virtual/dmi/id/product_name"
CACHE = "/var/tmp/neuron-compile-cache"


def check_neuron(s: Surroundings) -> list[Finding]:
    """One quiet line without a device, else one finding per question."""
    devices = _devices(s)
    if not devices:
        return [_without_device(s)]
    return [
        _check_device(s, devices),
        check_neuron_packages(s),
        check_neuron_path(s),
        check_neuron_variables(s),
        check_compile_cache(s),
        check_lanes(s),
    ]


def check_neuron_packages(s: Surroundings) -> Finding:
    """Which Neuron packages are there, and are they real?"""
    found = {name: version for name in PACKAGES if (version := s.version(name)) is not None}
    fake = _placeholders(s)
    detail = ", ".join(f"{name} {version}" for name, version in found.items()) or "none installed"
    if fake:
        return Finding("Neuron packages", WARN, f"{detail}: {_named(fake)}", _replace(fake))
    if "nki" not in found and "nrtpy" not in found:
        return Finding("Neuron packages", WARN, f"{detail}: neither nki (to compile) nor nrtpy (to run)", INDEX)
    if "nki" in found and "nrtpy" in found:
        return Finding(
            "Neuron packages", WARN, f"{detail}: nki and nrtpy clash in one environment", "give each an environment"
        )
    torch = s.version("torch")
    if "torch-xla" in found and torch is not None and not torch.startswith(found["torch-xla"].rsplit(".", 1)[0]):
        return Finding(
            "Neuron packages", WARN, f"{detail}, but torch {torch}", f"install torch {found['torch-xla']} beside it"
        )
    return Finding("Neuron packages", OK, detail)


def check_neuron_path(s: Surroundings) -> Finding:
    """Are the tools found that the packages call by name?"""
    path = [Path(entry) for entry in s.environ.get("PATH", "").split(os.pathsep) if entry]
    own = s.prefix / "bin"
    tools = s.root / TOOLS_FOLDER.lstrip("/")
    helpers = [name for name in ("libneuronpjrt-path", "neuronx-cc") if (own / name).exists()]
    lost = [name for name in helpers if _first(name, path) != own / name]
    if lost:
        return Finding(
            "Neuron PATH",
            WARN,
            f"{', '.join(lost)} of {own} {'is' if len(lost) == 1 else 'are'} not the first on PATH",
            f"export PATH={own}:$PATH",
        )
    if _first("neuron-ls", path) is None:
        fix = f"export PATH={TOOLS_FOLDER}:$PATH" if tools.is_dir() else "install aws-neuronx-tools"
        return Finding("Neuron PATH", WARN, "neuron-ls is not on PATH", fix)
    if s.version("nrtpy") is not None and "/opt/aws/neuron/lib" not in s.environ.get("LD_LIBRARY_PATH", "").split(":"):
        return Finding(
            "Neuron PATH",
            WARN,
            "nrtpy does not find its library",
            "export LD_LIBRARY_PATH=/opt/aws/neuron/lib:$LD_LIBRARY_PATH",
        )
    return Finding("Neuron PATH", OK, f"neuron-ls and the tools of {own} are found")


def check_neuron_variables(s: Surroundings) -> Finding:
    """Variables that change numbers, devices or what runs at all."""
    env, product = s.environ, _product(s)
    kind = product.split(".")[0]
    target = env.get("NEURON_PLATFORM_TARGET_OVERRIDE")
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
            "--auto-cast=none" not in re.sub(r"--auto-cast\s+", "--auto-cast=", env.get("NEURON_CC_FLAGS", "")),
            f"NEURON_CC_FLAGS={env.get('NEURON_CC_FLAGS', '')!r} lacks --auto-cast=none: older compilers round float32 "
            "products to bfloat16",
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
        (
            s.home is None,
            "HOME is not set: caches go to the home of the user's account",
            "export HOME=your home folder",
        ),
    )
    found = [(text, fix) for wrong, text, fix in problems if wrong]
    if found:
        texts, fixes = zip(*found, strict=True)
        return Finding("Neuron variables", WARN, "; ".join(texts), "; ".join(fixes))
    return Finding("Neuron variables", OK, f"NEURON_CC_FLAGS={env.get('NEURON_CC_FLAGS')}")


def check_compile_cache(s: Surroundings) -> Finding:
    """Can compiled kernels be kept?"""
    url = s.environ.get("NEURON_COMPILE_CACHE_URL", CACHE)
    if url.startswith("s3://"):
        return Finding("Neuron cache", OK, f"{url} (not looked at)")
    folder = s.root / url.lstrip("/") if url == CACHE else Path(url)
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(nearest, os.W_OK):
        return Finding(
            "Neuron cache", WARN, f"{url} cannot be written", "export NEURON_COMPILE_CACHE_URL=a folder of yours"
        )
    own = cache_folder(Host(s.environ, s.root, s.prefix, s.version))
    nearest = next(place for place in (own, *own.parents) if place.exists())
    if not os.access(nearest, os.W_OK):
        return Finding(
            "Neuron cache", WARN, f"{own} for compiled programs cannot be written", "export DFMP2_NEFF_CACHE=a folder"
        )
    return Finding("Neuron cache", OK, f"{url}; compiled programs of dfmp2 in {own}")


def check_lanes(s: Surroundings) -> Finding:
    """Which of the ways to launch kernels can be used, as a run would find out."""
    host = Host(s.environ, s.root, s.prefix, s.version)
    real = s.root == Path("/")  # a planted machine has nothing to import
    found = {lane: toolchain.problems(lane, host, importing=real) for lane in ("nki", "nki-xla")}
    usable = [lane for lane, problems in found.items() if not problems]
    told = [f"{lane}: {problems[0].reason}" for lane, problems in found.items() if problems]
    detail = "; ".join([*(f"{lane} can be used" for lane in usable), *told])
    if usable:
        return Finding("Neuron lanes", OK, detail)
    return Finding("Neuron lanes", WARN, detail, "; ".join(problems[0].fix for problems in found.values()))


def _without_device(s: Surroundings) -> Finding:
    fake = _placeholders(s)
    if fake:
        return Finding("Neuron", WARN, f"no Neuron device; {_named(fake)}", _replace(fake))
    return Finding("Neuron", OK, "no Neuron device")


def _check_device(s: Surroundings, devices: list[Path]) -> Finding:
    detail = f"{len(devices)} device{'s' * (len(devices) > 1)} ({_product(s) or 'unknown instance'})"
    shut = [device.name for device in devices if not os.access(device, os.R_OK | os.W_OK)]
    if shut:
        return Finding(
            "Neuron device", WARN, f"{detail}: {', '.join(shut)} may not be opened", "join the group of /dev/neuron*"
        )
    return Finding("Neuron device", OK, detail)


def _devices(s: Surroundings) -> list[Path]:
    return sorted(path for path in (s.root / "dev").glob("neuron*") if re.fullmatch(r"neuron\d+", path.name))


def _product(s: Surroundings) -> str:
    return " ".join(s.words(PRODUCT))


def _placeholders(s: Surroundings) -> list[str]:
    return [name for name, version in PLACEHOLDERS.items() if s.version(name) == version]


def _named(fake: list[str]) -> str:
    listed = ", ".join(f"{name} {PLACEHOLDERS[name]}" for name in fake)
    return f"{listed} from PyPI {'is a placeholder that fails' if len(fake) == 1 else 'are placeholders that fail'}"


def _replace(fake: list[str]) -> str:
    return f"pip uninstall {' '.join(fake)}; for the real {'one' if len(fake) == 1 else 'ones'} {INDEX}"


def _first(name: str, path: list[Path]) -> Path | None:
    return next((entry / name for entry in path if os.access(entry / name, os.X_OK)), None)
