"""Environment variables for Neuron processes, set by the launcher before any Neuron import.

User settings win, unless they would change numbers or hide the tools: the tools' folders are
prepended to PATH, HOME is set if missing, and NEURON_CC_FLAGS gets the flag without which float32
products may be rounded and, with torch-xla, the one without which failed compilations are cached.
Sources: Neuron Runtime configuration, NKI `jit` and persistent cache pages of the AWS Neuron
documentation 2.29 to 2.33. None of this was tried on a device.
"""

from __future__ import annotations

import atexit
import os
import pwd
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

TOOLS = "/opt/aws/neuron/bin"
LIBRARIES = "/opt/aws/neuron/lib"
EXACT = "--auto-cast=none"
RETRY = "--retry_failed_compilation"  # for torch-xla's compile cache; neuronx-cc itself rejects it
EXECUTION_TIMEOUT = 120  # s; the longest kernel call is predicted to take 0.03 s
HARDWARE = ("nki", "nki-xla")
ON = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(
    ("", "0", "false", "no", "off"), False
)


def installed(name: str) -> str | None:
    """Version of a distribution as it is installed now (`dfmp2.host.provenance.installed_version`
    remembers); None if missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Host:
    """Everything that the lanes inspect on the host, as one value that tests can replace.

    Attributes
    ----------
    environ : environment variables
    root : "/" on a real machine; prefix of /dev and /sys
    prefix : prefix of the Python installation, whose bin folder holds the compiler
    version : distribution name -> version installed for this interpreter, None if missing
    """

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    prefix: Path = Path(sys.prefix)
    version: Callable[[str], str | None] = installed

    @property
    def python(self) -> str:
        """Python interpreter that compiles kernels: this one, or `DFMP2_NKI_PYTHON` if nki and the
        bindings clash."""
        return self.environ.get("DFMP2_NKI_PYTHON") or sys.executable

    def flag(self, name: str) -> bool | None:
        """Value of a yes-or-no variable; None if it is neither."""
        return ON.get(self.environ.get(name, "").strip().lower())

    def text(self, file: str) -> str:
        """Contents of a system file without surrounding space, "" if it cannot be read."""
        try:
            return (self.root / file.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return ""

    def devices(self) -> list[Path]:
        """Neuron devices: /dev/neuron0 and so on."""
        return sorted(
            path
            for path in (self.root / "dev").glob("neuron*")
            if re.fullmatch(r"neuron\d+", path.name)
        )


HERE = Host()


def settings(lane: str, target: str, host: Host = HERE, core: int | None = None) -> dict[str, str]:
    """Environment variables to set for a lane.

    Parameters
    ----------
    lane : "nki", "nki-xla" or "nki-simulator"
    target : "trn1" or "trn2"
    core : the NeuronCore owned by this process, None for that in NEURON_RT_VISIBLE_CORES or else
        the first
    """
    env = host.environ
    found = {"PATH": search_path(host), "NEURON_PLATFORM_TARGET_OVERRIDE": target}
    if not env.get("HOME"):
        found["HOME"] = home()
    if lane == "nki-simulator":
        return found
    found["NEURON_LOGICAL_NC_CONFIG"] = "1"  # kernels are written for one physical core
    found["NEURON_RT_STOCHASTIC_ROUNDING_EN"] = "0"
    found["NEURON_RT_EXEC_TIMEOUT"] = env.get("NEURON_RT_EXEC_TIMEOUT") or str(EXECUTION_TIMEOUT)
    found["NEURON_RT_VISIBLE_CORES"] = env.get("NEURON_RT_VISIBLE_CORES") or "0"
    if core is not None:
        found["NEURON_RT_VISIBLE_CORES"] = str(core)
    found["NEURON_CC_FLAGS"] = compiler_flags(env.get("NEURON_CC_FLAGS", ""), lane)
    if lane == "nki-xla":
        found["PJRT_DEVICE"] = "NEURON"  # otherwise torch-xla silently uses the CPU
        found["NEURON_COMPILE_CACHE_URL"] = env.get("NEURON_COMPILE_CACHE_URL") or str(
            cache_folder(host) / "xla"
        )
    return found


@cache
def package_folder() -> Path:
    """A folder that holds only dfmp2, for Python interpreters with other packages than this one.

    The folder in which dfmp2 is installed may also hold the NumPy of this environment and a
    placeholder of nki.
    """
    kept = tempfile.TemporaryDirectory(prefix="dfmp2-package-")
    atexit.register(kept.cleanup)
    folder = Path(kept.name)
    (folder / "dfmp2").symlink_to(Path(__file__).resolve().parents[2])
    return folder


def with_package(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables of a process that imports dfmp2 from here, and everything else from its own
    interpreter."""
    entries = [str(package_folder()), variables.get("PYTHONPATH", "")]
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, entries))}


def compiler_variables(target: str, host: Host = HERE) -> dict[str, str]:
    """Variables of the process that compiles kernels for a chip, and of the availability checks."""
    return with_package({**host.environ, **settings("nki", target, host)})


def compiler_flags(given: str, lane: str) -> str:
    """NEURON_CC_FLAGS with the required flags, overriding any `--auto-cast`.

    nki passes them unchanged to neuronx-cc, which fails on unknown flags; torch-xla removes its
    own.
    """
    kept = [flag for flag in re.sub(r"--auto-cast[=\s]+\S+", "", given).split() if flag != RETRY]
    return " ".join([*kept, EXACT, *([RETRY] if lane == "nki-xla" else [])])


def search_path(host: Host) -> str:
    """PATH with this environment's tools and Neuron's own in front."""
    python = Path(host.python).parent
    first = [str(host.prefix / "bin"), str(python), str(host.root / TOOLS.lstrip("/"))]
    given = [entry for entry in host.environ.get("PATH", "").split(os.pathsep) if entry]
    return os.pathsep.join(dict.fromkeys([*first, *given]))


def home() -> str:
    """A home directory for shells without one, such as root shells of AWS Systems Manager."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/tmp"


def cache_folder(host: Host = HERE) -> Path:
    """Folder of compiled programs: $DFMP2_NEFF_CACHE, else $XDG_CACHE_HOME/dfmp2/neff."""
    named = host.environ.get("DFMP2_NEFF_CACHE")
    if named:
        return Path(named)
    base = host.environ.get("XDG_CACHE_HOME") or os.path.join(
        host.environ.get("HOME") or home(), ".cache"
    )
    return Path(base) / "dfmp2" / "neff"


def visible_cores(text: str) -> tuple[int, ...] | None:
    """NeuronCores in NEURON_RT_VISIBLE_CORES: "0", "0,2" or "0-3"; None if the text has another
    form."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", part)
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            return None
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))
