"""Finding AWS's packages, or explaining the failure: exit 6 with reason and fix within seconds, before
any SCF; in one environment that runs and one that compiles."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

from dfmp2.backends import registry
from dfmp2.cli.main import main
from dfmp2.errors import InputError
from dfmp2.mp2 import energy
from dfmp2.trainium import entry
from dfmp2.trainium.launch import environment, toolchain
from dfmp2.trainium.launch.environment import Host
from tests.conftest import MOLECULES
from tests.recorded import recorded_error
from tests.stand_in_nki.site import SOUND, planted

INDEX = "AWS's own package index"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    with planted(tmp_path, monkeypatch) as site:
        yield site


PLANTED = {
    "no device": lambda site: (site.install(), site.tools()),
    "nothing installed": lambda site: site.device(),
    "placeholder": lambda site: site.sound(nki="0.0.1"),
    "placeholder of the compiler": lambda site: site.sound(neuronx_cc="1.0.post1"),
    "too old": lambda site: site.sound(nki="0.1.2"),
    "too new": lambda site: site.sound(nki="0.9.0"),
    "broken PATH": lambda site: (
        site.device(),
        site.install(),
        site.patch.setenv("PATH", "/usr/bin:/bin"),
    ),
    "broken import": lambda site: site.sound().fault("broken-import"),
    "no bindings": lambda site: site.sound(nrtpy=None),
    "unknown chip": lambda site: site.sound().device("p5.48xlarge"),
    "simulated": lambda site: site.sound().patch.setenv("NKI_SIMULATOR", "1"),
    "other target": lambda site: site.sound().patch.setenv(
        "NEURON_PLATFORM_TARGET_OVERRIDE", "trn2"
    ),
    "bad cores": lambda site: site.sound().patch.setenv("NEURON_RT_VISIBLE_CORES", "all"),
    "PJRT on the CPU": lambda site: site.sound().patch.setenv("PJRT_DEVICE", "CPU"),
    "other torch": lambda site: site.sound(torch_xla="1.13.1"),
    "release of the other chip": lambda site: site.sound().device("trn2.48xlarge"),
}
CASES = [
    ("no device", "nki", ("there is no Neuron device", "nki-interpreter")),
    ("no device", "nki-xla", ("there is no Neuron device", "Trn1 instance")),
    (
        "nothing installed",
        "nki",
        ("nki is not installed, neuronx-cc is not installed: install it from", INDEX),
    ),
    (
        "nothing installed",
        "nki-xla",
        ("torch-xla is not installed, libneuronxla is not installed", INDEX),
    ),
    ("placeholder", "nki", ("nki 0.0.1 from PyPI is a placeholder", "pip uninstall nki", INDEX)),
    ("placeholder", "nki-xla", ("nki 0.0.1 from PyPI is a placeholder", "pip uninstall nki")),
    ("placeholder", "nki-simulator", ("nki 0.0.1 from PyPI is a placeholder", INDEX)),
    (
        "placeholder of the compiler",
        "nki",
        ("neuronx-cc 1.0.post1 from PyPI is a placeholder", INDEX),
    ),
    ("too old", "nki", ("nki 0.1.2 is not the release that", "install nki 0.6: the extra neuron")),
    (
        "too new",
        "nki-simulator",
        ("nki 0.9.0 is not the release that", "install nki 0.6: the extra neuron"),
    ),
    (
        "release of the other chip",
        "nki",
        ("nki 0.6.0 is not the release that", "install nki 0.7: the extra neuron-trn2"),
    ),
    ("broken PATH", "nki", ("neuronx-cc cannot be found on PATH", "in front of PATH")),
    (
        "broken PATH",
        "nki-xla",
        ("neuronx-cc and libneuronpjrt-path cannot be found on PATH", "in front of PATH"),
    ),
    ("broken import", "nki", ("'import nki' fails", "undefined symbol", "reinstall")),
    ("broken import", "nki-simulator", ("'import nki' fails", "undefined symbol", "reinstall")),
    ("no bindings", "nki", ("runtime bindings nrtpy are absent", "DFMP2_NKI_PYTHON")),
    ("unknown chip", "nki", ("neither Trainium1 nor Trainium2", "use cpu")),
    ("simulated", "nki", ("NKI_SIMULATOR=1", "unset")),
    ("other target", "nki", ("but the device is a trn1", "unset")),
    ("bad cores", "nki", ("=all: this names no cores", "0-1")),
    ("PJRT on the CPU", "nki-xla", ("PJRT_DEVICE=CPU", "unset")),
    ("other torch", "nki-xla", ("torch-xla 1.13.1 do not belong together", "install torch 1.13.1")),
]


@pytest.mark.parametrize(("plant", "lane", "told"), CASES)
def test_a_lane_that_cannot_run_ends_before_the_scf_with_reason_and_fix(
    machine, capsys, plant, lane, told
):
    PLANTED[plant](machine)
    code, message, seconds = refuse(machine, capsys, "--backend", lane)
    assert code == 6
    assert f"--backend {lane}" in message
    assert all(part in message for part in told), message
    assert seconds < 60.0


def refuse(machine, capsys, *options):
    """Exit code, last line and time of a run that must not reach the SCF."""
    (machine.folder / "h2o.xyz").write_text(MOLECULES["h2o"])
    machine.patch.setattr(energy, "run_scf", reached)
    machine.patch.chdir(machine.folder)
    begin = time.perf_counter()
    code = main(["run", "h2o.xyz", "--basis", "sto-3g", "--threads", "1", *options])
    seconds = time.perf_counter() - begin
    assert not (machine.folder / "h2o.dfmp2.h5").exists()
    return code, capsys.readouterr().err.splitlines()[-1], seconds


def reached(*_, **__):
    raise AssertionError("the SCF was reached")


@pytest.mark.parametrize(
    ("instance", "release", "chip"),
    [("trn1.2xlarge", "0.6.0", "trn1"), ("trn2.48xlarge", "0.7.1", "trn2")],
)
def test_a_sound_installation_has_no_problem_and_says_what_it_found(
    machine, instance, release, chip
):
    machine.sound(nki=release).device(instance)
    machine.patch.setenv("PJRT_DEVICE", "neuron")
    assert {lane: toolchain.refusal(lane) for lane in toolchain.NEEDED} == dict.fromkeys(
        toolchain.NEEDED
    )
    assert toolchain.has_bindings()
    assert toolchain.device_target() == chip


@pytest.mark.parametrize(
    ("product", "architecture", "chip"),
    [
        *((name, "", "trn1") for name in ("trn1.32xlarge", "trn1n.32xlarge", "inf2.xlarge")),
        *((name, "", "trn2") for name in ("trn2.48xlarge", "trn2u.48xlarge")),
        ("", "NCv2", "trn1"),
        ("a container", "NCv3", "trn2"),
        ("p5.48xlarge", "NCv4", None),
    ],
)
def test_the_chip_is_that_of_the_instance_or_else_of_the_driver(
    product, architecture, chip, tmp_path
):
    core = "sys/devices/virtual/neuron_device/neuron0/neuron_core0/info/architecture/arch_type"
    for file, text in ((toolchain.PRODUCT.lstrip("/"), product), (core, architecture)):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(f"{text}\n")
    assert toolchain.device_target(Host({}, tmp_path)) == chip


@pytest.mark.parametrize("shut", ["", "neuron0", "neuron0, neuron1"])
def test_one_device_that_can_be_opened_is_enough(machine, shut):
    machine.sound()
    for name in ("neuron1", "neuron_link"):
        (machine.folder / "root/dev" / name).touch()
    closed = shut.split(", ")
    machine.patch.setattr(
        os, "access", lambda path, mode: Path(path).name not in closed or not mode & os.W_OK
    )
    found = [one.reason for one in toolchain.problems("nki", importing=False)]
    assert found == [f"{shut} may not be opened"] * (len(closed) == 2)


PACKAGES = {  # of a lane, with the version of the placeholder on PyPI, if there is one
    "nki": {"nki": "0.0.1", "neuronx-cc": "1.0.post1"},
    "nki-xla": {
        "nki": "0.0.1",
        "neuronx-cc": "1.0.post1",
        "torch-neuronx": "1.0",
        "libneuronxla": "1.0",
        "torch-xla": None,
        "torch": None,
    },
    "nki-simulator": {"nki": "0.0.1"},
}


@pytest.mark.parametrize("lane", PACKAGES)
def test_each_package_of_a_lane_is_missed_and_its_placeholder_recognised(lane, tmp_path):
    def reasons(**other):
        versions = {**SOUND, "torch": SOUND["torch-xla"]}
        versions |= {name.replace("_", "-"): version for name, version in other.items()}
        host = Host({}, tmp_path, tmp_path, versions.get)
        return {one.reason for one in toolchain.problems(lane, host, importing=False)}

    for package, placeholder in PACKAGES[lane].items():
        name = package.replace("-", "_")
        assert reasons(**{name: None}) - reasons() == {f"{package} is not installed"}
        if placeholder is not None:
            reason = f"{package} {placeholder} from PyPI is a placeholder that raises on import"
            assert reason in reasons(**{name: placeholder})


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("1", "true", "yes", "on", " Yes "), True),
        (("", "0", "false", "no", "off", "OFF"), False),
        (("2", "y", "perhaps"), None),
    ],
)
def test_words_of_a_variable_that_is_yes_or_no(words, value):
    assert [Host({"NKI_SIMULATOR": word}).flag("NKI_SIMULATOR") for word in words] == [
        value for _ in words
    ]
    assert Host({}).flag("NKI_SIMULATOR") is False


@pytest.mark.parametrize(
    ("variables", "options", "told"),
    [
        (
            {"DFMP2_REQUIRE_NKI": "1"},
            (),
            ("--backend nki", "DFMP2_REQUIRE_NKI=1", "no Neuron device"),
        ),
        (
            {"DFMP2_REQUIRE_NKI": "1"},
            ("--backend", "cpu"),
            ("allows only the nki lanes", "--backend cpu", "unset"),
        ),
        ({"DFMP2_BACKEND": "nki"}, (), ("--backend nki ", "no Neuron device")),
        (
            {"DFMP2_USE_SIMULATOR": "1"},
            ("--backend", "nki"),
            ("--backend nki-simulator", "nki is not installed"),
        ),
        ({"DFMP2_USE_SIMULATOR": "1"}, (), ("simulator in place of auto", "nki is not installed")),
        ({"DFMP2_BACKEND": "cpu", "DFMP2_REQUIRE_NKI": "1"}, (), ("allows only the nki lanes",)),
    ],
)
def test_variables_are_read_when_a_run_starts(machine, capsys, variables, options, told):
    for name, value in variables.items():
        machine.patch.setenv(name, value)
    code, message, seconds = refuse(machine, capsys, *options)
    assert code == 6
    assert all(part in message for part in told), message
    assert seconds < 60.0


def test_requiring_nki_allows_the_interpreter_and_takes_xla_where_only_that_runs(machine):
    machine.patch.setenv("DFMP2_REQUIRE_NKI", "1")
    assert registry.select_backend("nki-interpreter", "auto", 1)[0].name == "nki-interpreter"
    machine.sound(nrtpy=None)
    assert entry.named_lane("auto") == ("nki-xla", "DFMP2_REQUIRE_NKI=1")


def test_a_variable_that_is_neither_yes_nor_no_is_an_error(machine):
    machine.patch.setenv("DFMP2_REQUIRE_NKI", "perhaps")
    with recorded_error(InputError):
        registry.select_backend("auto", "auto", 1)


def test_tools_are_found_first_and_there_is_a_home(tmp_path, monkeypatch):
    host = Host({"PATH": "/usr/bin"}, tmp_path, tmp_path / "venv")
    found = environment.settings("nki-simulator", "trn1", host)
    assert found["HOME"] == pwd.getpwuid(os.getuid()).pw_dir
    folders = found["PATH"].split(":")
    assert (folders[0], folders[-1]) == (str(tmp_path / "venv/bin"), "/usr/bin")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)  # of nobody, as in containers
    assert environment.settings("nki-simulator", "trn1", host)["HOME"] == "/tmp"


OF_A_LANE = {
    "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
    "NEURON_LOGICAL_NC_CONFIG": "1",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": "0",
    "NEURON_RT_EXEC_TIMEOUT": "120",
    "NEURON_RT_VISIBLE_CORES": "0",
    "NEURON_CC_FLAGS": "--auto-cast=none",
}


@pytest.mark.parametrize(
    ("lane", "core", "given", "different"),
    [
        ("nki", None, {}, {}),
        ("nki", 1, {"NEURON_RT_VISIBLE_CORES": "4-5"}, {"NEURON_RT_VISIBLE_CORES": "1"}),
        ("nki", None, {"NEURON_RT_VISIBLE_CORES": "4"}, {"NEURON_RT_VISIBLE_CORES": "4"}),
        ("nki", None, {"NEURON_RT_EXEC_TIMEOUT": "9"}, {"NEURON_RT_EXEC_TIMEOUT": "9"}),
        (
            "nki",
            None,
            {"NEURON_CC_FLAGS": "--retry_failed_compilation --verbose=35 --auto-cast matmult"},
            {"NEURON_CC_FLAGS": "--verbose=35 --auto-cast=none"},
        ),
        ("nki-simulator", None, {}, dict.fromkeys([*OF_A_LANE][1:])),
        (
            "nki-xla",
            None,
            {},
            {
                "PJRT_DEVICE": "NEURON",
                "NEURON_COMPILE_CACHE_URL": "/h/.cache/dfmp2/neff/xla",
                "NEURON_CC_FLAGS": "--auto-cast=none --retry_failed_compilation",
            },
        ),
        (
            "nki-xla",
            None,
            {"NEURON_COMPILE_CACHE_URL": "s3://b", "NEURON_CC_FLAGS": "-O1"},
            {
                "PJRT_DEVICE": "NEURON",
                "NEURON_COMPILE_CACHE_URL": "s3://b",
                "NEURON_CC_FLAGS": "-O1 --auto-cast=none --retry_failed_compilation",
            },
        ),
    ],
)
def test_every_variable_of_a_lane(lane, core, given, different, tmp_path):
    host = Host({"HOME": "/h", **given}, tmp_path, tmp_path / "venv")
    found = environment.settings(lane, "trn2", host, core)
    assert found.pop("PATH") == environment.search_path(host)
    expected = {**OF_A_LANE, **different}
    assert found == {name: value for name, value in expected.items() if value is not None}


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"DFMP2_NEFF_CACHE": "/n", "XDG_CACHE_HOME": "/x"}, "/n"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/dfmp2/neff"),
        ({"HOME": "/h"}, "/h/.cache/dfmp2/neff"),
    ],
)
def test_where_programs_are_kept(given, folder, tmp_path):
    assert str(environment.cache_folder(Host(given, tmp_path, tmp_path))) == folder


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", (0,)),
        ("0,2", (0, 2)),
        ("0-3", (0, 1, 2, 3)),
        ("4,0-1", (4, 0, 1)),
        ("3-1", None),
        ("0,3-1", None),
        ("1,1-2", (1, 2)),
        ("a", None),
        ("", None),
    ],
)
def test_core_lists(text, cores):
    assert environment.visible_cores(text) == cores


def test_a_folder_named_like_a_package_in_the_working_directory_is_not_imported(machine):
    machine.sound()
    (machine.folder / "nki.py").write_text("raise SystemExit('a user file was imported')")
    machine.patch.chdir(machine.folder)
    assert toolchain.refusal("nki-simulator") is None


# --- an environment that runs and one that compiles -----------------------------------------------


ROOT = Path(__file__).parent.parent
COMPILER = '''"""What a compilation imports, told instead of a program."""
import json, os, pathlib, sys
import numpy
import dfmp2
record = {
    "numpy": numpy.__file__,
    "nki": __file__,
    "python": sys.prefix,
    "dfmp2": os.path.realpath(dfmp2.__file__),
    "path": sys.path,
}
pathlib.Path(os.environ["TOLD"]).write_text(json.dumps(record))
raise RuntimeError("NCC_STAND_IN: told")
'''
LEAKED = "raise ImportError('the package of the other environment')\n"
ASK = """
from dfmp2.backends.base import Shape
from dfmp2.trainium.launch import compiler, toolchain
from dfmp2.errors import Dfmp2Error
try:
    compiler.compile_ahead((Shape(3, 8, 12),), "trn1")
except Dfmp2Error as error:
    print(error)
"""


def packages(prefix: Path) -> Path:
    """The folder of packages of an environment."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(prefix)}))


def plant(site: Path, name: str, version: str, text: str) -> None:
    """Install a package of one line."""
    module = name.replace("-", "_")
    (site / module).mkdir()
    (site / module / "__init__.py").write_text(text)
    information = site / f"{module}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An environment with dfmp2, its libraries and a package called nki that must not be imported,
    and one with a compiler."""
    folder = tmp_path_factory.mktemp("environments")
    run, compile_ = folder / "run", folder / "compile"
    for prefix in (run, compile_):
        venv.create(prefix, with_pip=False, symlinks=True)
    # As installed from a wheel: the package beside all others, not a link to a checkout.
    shutil.copytree(
        ROOT / "dfmp2", packages(run) / "dfmp2", ignore=shutil.ignore_patterns("__pycache__")
    )
    own = sysconfig.get_path("purelib")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (packages(run) / "libraries.pth").write_text("\n".join(dict.fromkeys([own, *libraries])) + "\n")
    plant(packages(run), "nki", "0.6.0", LEAKED)
    for name, text in (
        ("numpy", "ndarray = float32 = None\n"),
        ("nki", COMPILER),
        ("neuronx-cc", ""),
    ):
        plant(
            packages(compile_),
            name,
            {"nki": "0.6.0", "neuronx-cc": "2.27.5334.0"}.get(name, "1.0"),
            text,
        )
    tool = compile_ / "bin" / "neuronx-cc"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    return run, compile_


@pytest.mark.parametrize("checked", [True, False])
def test_the_compiler_meets_dfmp2_and_nothing_else_of_the_run_environment(
    environments: tuple[Path, Path], tmp_path: Path, checked: bool
) -> None:
    """The availability check (`checked`) imports nki first; then the child that compiles does."""
    run, compile_ = environments
    told = tmp_path / "told.json"
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "DFMP2"))
    }
    variables |= {
        "DFMP2_NKI_PYTHON": str(compile_ / "bin" / "python"),
        "DFMP2_NEFF_CACHE": str(tmp_path / "neff"),
        "TOLD": str(told),
    }
    ask = ASK
    if not checked:
        ask = ASK.replace("try:", "toolchain.compiler_problems = lambda target: ()\ntry:")
    done = subprocess.run(
        [str(run / "bin" / "python"), "-c", ask],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "NCC_STAND_IN" in done.stdout, done.stdout + done.stderr
    found = json.loads(told.read_text())
    assert found["python"] == str(compile_)
    for name in ("nki", "numpy"):
        assert found[name].startswith(str(packages(compile_))), found[name]
    assert found["dfmp2"].startswith(str(packages(run)))  # the plain install, by a link to it alone
    assert str(packages(run)) not in found["path"]
