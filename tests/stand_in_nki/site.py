"""Puts the stand-in in place for one test and takes it away again."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from dfmp2.backends import registry
from dfmp2.trainium.calls import Program
from dfmp2.trainium.launch import compiler, toolchain
from dfmp2.trainium.launch.environment import HERE, compiler_variables

PACKAGES = Path(__file__).parent / "packages"
SOUND = {
    "nki": "0.6.0",
    "neuronx-cc": "2.27.5334.0",
    "nrtpy": "0.3",
    "torch-xla": metadata.version("torch").split("+")[0],
    "torch-neuronx": "2.9.0.2.15.32035",
    "libneuronxla": "2.2.16408.0",
}
# nothing that was made with it may look like a device
SUMMARY = "a stand-in, not the package of AWS"
OURS = (
    "nki",
    "nrtpy",
    "spike",
    "torch_xla",
    "libneuronxla",
    "torch_neuronx",
    "dfmp2.trainium.kernels",
)
NEURON = ("NEURON_", "PJRT_", "NKI_", "DFMP2_", "STAND_IN_")


@dataclass
class Site:
    """A machine with Neuron devices and packages."""

    folder: Path
    patch: pytest.MonkeyPatch

    @property
    def counter(self) -> Path:
        """The device's own count of inferences."""
        core = "sys/devices/virtual/neuron_device/neuron0/neuron_core0"
        return self.folder / "root" / core / "stats/other_info/inference_count"

    def device(self, instance: str = "trn1.2xlarge") -> None:
        """Plug a device in."""
        root = self.folder / "root"
        for file, text in {
            "dev/neuron0": "",
            "sys/devices/virtual/dmi/id/product_name": instance,
        }.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        self.counter.parent.mkdir(parents=True, exist_ok=True)
        self.counter.write_text("7")
        self.patch.setenv("STAND_IN_COUNTER", str(self.counter))
        self.patch.setenv("STAND_IN_PRODUCT", str(root / "sys/devices/virtual/dmi/id/product_name"))

    def install(self, **versions: str | None) -> None:
        """Install the packages; None leaves one out, a version replaces the sound one."""
        site = self.folder / "site"
        for package, version in {
            **SOUND,
            **{k.replace("_", "-"): v for k, v in versions.items()},
        }.items():
            if version is None:
                continue
            name = package.replace("-", "_")
            information = site / f"{name}-{version}.dist-info"
            information.mkdir(parents=True)
            text = (
                f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nSummary: {SUMMARY}\n"
            )
            (information / "METADATA").write_text(text)
            if (PACKAGES / name).is_dir():
                shutil.copytree(PACKAGES / name, site / name)
        self.patch.syspath_prepend(site)
        repository = Path(__file__).parents[2]
        self.patch.setenv("PYTHONPATH", f"{site}:{repository}")

    def tools(self) -> None:
        """Put tools on PATH."""
        for name in ("neuronx-cc", "libneuronpjrt-path"):
            tool = self.folder / "bin" / name
            tool.parent.mkdir(exist_ok=True)
            tool.write_text("#!/bin/sh\n")
            tool.chmod(0o755)
        self.patch.setenv("PATH", f"{self.folder / 'bin'}:/usr/bin:/bin")

    def processes(self) -> None:
        """Let other Python processes find this machine, too."""
        text = (
            "import pathlib\nfrom dfmp2.backends import registry\n"
            "from dfmp2.trainium.launch.environment import HERE\n"
            f"root = pathlib.Path({str(self.folder / 'root')!r})\n"
            "object.__setattr__(HERE, 'root', root)\n"
            "registry.NEURON_DEVICES = f'{root}{registry.NEURON_DEVICES}'\n"
        )
        (self.folder / "site" / "sitecustomize.py").write_text(text)

    def fault(self, name: str) -> None:
        """Let something go wrong."""
        self.patch.setenv("STAND_IN_NKI", name)

    def sound(self, **versions: str | None) -> Site:
        """Everything in place."""
        self.device()
        self.install(**versions)
        self.tools()
        return self


def forget() -> None:
    """Forget what was imported of the stand-in, and kernels that it has decorated."""
    for name in [
        name
        for name in sys.modules
        if name in OURS or name.startswith(tuple(f"{own}." for own in OURS))
    ]:
        del sys.modules[name]
    toolchain._import_error.cache_clear()
    toolchain._foreign_versions.cache_clear()


# Outcomes of imports and compilations, in processes of their own (0.25 and 0.4 s each), which
# machines with the same packages and variables share.
IMPORTS: dict[Any, str | None] = {}
COMPILED: dict[Any, tuple[bytes, str]] = {}
# Faults that are met when a program is launched.
OF_A_DEVICE = (
    "",
    "core-busy",
    "deaf-device",
    "hardware-fault",
    "kernel-raises",
    "not-a-number",
    "other-names",
    "other-chip",
    "out-of-bounds",
    "time-out",
    "took-the-cpu",
    "two-outputs",
    "wrong-numbers",
)
# What an import of the packages depends on, beside the site's files.
OF_IMPORTS = ("PATH", "PYTHONPATH")


def surroundings(folder: Path, variables: Iterable[tuple[str, str]]) -> tuple[Any, ...]:
    """The site's files, those of the user beside it, and the variables, without names of the
    folder, the test and a device's fault."""
    files = sorted([*(folder / "site").rglob("*.py"), *folder.glob("*.py")])
    contents = tuple(
        (str(file.relative_to(folder)), file.read_text().replace(str(folder), "FOLDER"))
        for file in files
    )
    shared = tuple(
        (name, value.replace(str(folder), "FOLDER"))
        for name, value in sorted(variables)
        if name != "PYTEST_CURRENT_TEST" and value not in OF_A_DEVICE
    )
    return contents, shared


def imported_once(folder: Path) -> Callable[..., str | None]:
    """The toolchain's import in a process of its own, by its surroundings."""
    asked = toolchain._import_error

    def ask(
        python: str, modules: tuple[str, ...], variables: tuple[tuple[str, str], ...]
    ) -> str | None:
        known = [pair for pair in variables if pair[0] in OF_IMPORTS]
        if ("STAND_IN_NKI", "broken-import") in variables:
            known.append(("STAND_IN_NKI", "broken-import"))
        case = (python, modules, surroundings(folder, known))
        if case not in IMPORTS:
            IMPORTS[case] = asked(python, modules, variables)
        return IMPORTS[case]

    return ask


def compiled_once(folder: Path) -> Callable[..., tuple[Path, str]]:
    """The compilation of a program, by its surroundings; one that fails is repeated."""
    made = compiler._compile

    def make(program: Program, target: str, place: Path, kept: Path) -> tuple[Path, str]:
        met = surroundings(folder, compiler_variables(target).items())
        case = (HERE.python, program.fingerprint(target), met)
        if case not in COMPILED:
            file, entry = made(program, target, place, kept)
            COMPILED[case] = (file.read_bytes(), entry)
        content, entry = COMPILED[case]
        file = place / "kernel.neff"
        file.write_bytes(content)
        return file, entry

    return make


@contextmanager
def planted(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A machine without any of it, to which a test adds what it needs."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook, environ, root = sys.unraisablehook, dict(os.environ), HERE.root
    patch.setattr(registry, "NEURON_DEVICES", f"{folder}/root{registry.NEURON_DEVICES}")
    for name in [name for name in os.environ if name.startswith(NEURON)]:
        del os.environ[name]
    os.environ |= {"DFMP2_NEFF_CACHE": str(folder / "neff"), "OMP_NUM_THREADS": "1"}
    (folder / "root").mkdir()
    object.__setattr__(HERE, "root", folder / "root")
    forget()
    patch.setattr(toolchain, "_import_error", imported_once(folder))
    patch.setattr(compiler, "_compile", compiled_once(folder))
    try:
        yield Site(folder, patch)
    finally:
        patch.undo()  # now: later it would bring back variables of this machine
        object.__setattr__(HERE, "root", root)
        os.environ.clear()
        os.environ |= environ
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)
        forget()
