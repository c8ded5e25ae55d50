"""Every trap is planted once: the doctor must name it, with a fix, and return the exit code of a
run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyscf import gto, scf
from pyscf.mp.dfmp2_native import DFRMP2

import dfmp2
from dfmp2.cli import checks
from dfmp2.errors import ResultFileError
from dfmp2.host import resources
from dfmp2.mp2.result import MP2Result
from dfmp2.trainium.launch import toolchain as diagnosis
from dfmp2.trainium.launch.toolchain import PLACEHOLDERS
from dfmp2.validation import doctor
from dfmp2.validation.doctor import Diagnosis, Surroundings, exit_code, inspect
from tests.conftest import Runner, listing, run_command, succeed

ROOT = Path(__file__).parent.parent


@pytest.fixture
def sound(tmp_path: Path) -> Surroundings:
    """A machine without traps, with its system files in a folder."""
    for folder in ("work", "home", "root"):
        (tmp_path / folder).mkdir()
    return Surroundings(
        environ={"HOME": str(tmp_path / "home"), "PATH": "/usr/bin", "TMPDIR": str(tmp_path)},
        folder=tmp_path / "work",
        root=tmp_path / "root",
        prefix=tmp_path / "venv",
        path=("/usr/lib/python3",),
        cores=8,
        version={
            "dfmp2": "1",
            "numpy": "2.1",
            "scipy": "1.14",
            "h5py": "3.11",
            "click": "8.1.7",
            "pyscf": "2.14.0",
        }.get,
        requirements=(
            "python>=3.11",
            "numpy>=1.26",
            "scipy>=1.11",
            "h5py>=3.10",
            "click>=8.1",
            "pyscf>=2.13",
            "torch>=2.9; extra == 'torch'",
        ),
    )


def having(s: Any, variables: Mapping[str, str] | None = None, **versions: str) -> Any:
    """The machine with further environment variables and installed distributions ("_" for "-")."""
    known = {name.replace("_", "-"): version for name, version in versions.items()}
    return replace(
        s,
        environ={**s.environ, **(variables or {})},
        version=lambda name: known.get(name) or s.version(name),
    )


def plant(s: Surroundings, file: str, text: str = "") -> None:
    """A system file."""
    path = s.root / file.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)
    return path


def check(
    finding: Diagnosis, *texts: str, fix: str | None = None, status: str = "warn", code: int = 0
) -> None:
    """Check that a finding contains these texts; it is sound if no fix is expected."""
    expected = (status, code) if fix else ("ok", 0)
    assert (finding.status, finding.exit_code) == expected, finding
    assert all(text in finding.detail for text in texts), finding
    assert (fix or "") in finding.fix and bool(fix) == bool(finding.fix)
    assert "\n" not in finding.detail + finding.fix


# --- one trap each --------------------------------------------------------------------------------

# Check, what is changed (environment variables, installed versions, or fields), detail, fix (None:
# it is sound), code.
TRAPS: tuple[tuple[str, dict[str, Any], str, str | None, int], ...] = (
    ("libraries", {}, "numpy 2.1, scipy 1.14, h5py 3.11, click 8.1.7", None, 0),
    (
        "libraries",
        {"scipy": "1.9.3"},
        "scipy of a version that will not do",
        "pip install 'scipy>=1.11'",
        0,
    ),
    ("libraries", {"click": "8.0rc1"}, "click of a version", "pip install 'click>=8.1'", 0),
    ("libraries", {"scipy": "1.11rc1", "h5py": "3.10.0"}, "scipy 1.11rc1, h5py 3.10.0", None, 0),
    (
        "libraries",
        {"requirements": ("typing-extensions>=4",), "typing_extensions": "4.12"},
        "typing-extensions 4.12",
        None,
        0,
    ),
    ("libraries", {"requirements": ("jinja2>=3.1",)}, "jinja2 missing", "pip install jinja2", 1),
    ("libraries", {"requirements": ("filelock",)}, "filelock missing", "pip install filelock", 1),
    (
        "libraries",
        {"requirements": ("pyscf>=2",), "version": {}.get},
        "pyscf missing",
        "pip install pyscf",
        3,
    ),
    ("libraries", {"requirements": None}, "is not installed", "pip install .", 0),
    (
        "libraries",
        {"version": {"numpy": "2.1"}.get},
        "h5py missing",
        "pip install scipy h5py click",
        1,
    ),
    ("threads", {}, "8 usable (8 by affinity, no quota)", None, 0),
    (
        "threads",
        {"OMP_NUM_THREADS": "64"},
        "8 usable (8 by affinity, no quota); OMP_NUM_THREADS=64 is more",
        "=8",
        0,
    ),
    (
        "threads",
        {"OMP_NUM_THREADS": "2"},
        "OMP_NUM_THREADS=2 is fewer",
        "or run with --threads 8",
        0,
    ),
    ("threads", {"OMP_NUM_THREADS": "many"}, "is no number", "unset OMP_NUM_THREADS", 0),
    *(
        ("threads", {"OMP_PROC_BIND": word}, "8 usable", None, 0)
        for word in ("FALSE", "disabled", "none")
    ),
    *(
        ("threads", {name: "true"}, f"{name}=true may pin all workers", f"unset {name}", 0)
        for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
    ),
    *(
        ("threads", {name: "4"}, f"; a run overrides {name}=4", None, 0)
        for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    ),
    ("working directory", {"folder": Path("/nowhere/gone")}, "there is no folder", "--output", 3),
    (
        "working directory",
        {"folder": Path("/proc")},
        "cannot write into /proc",
        "--output",
        7,
    ),  # root included
    ("scratch", {"TMPDIR": "/nowhere"}, "TMPDIR=/nowhere cannot be written", "unset TMPDIR", 0),
    ("scratch", {"PYSCF_TMPDIR": "/nowhere"}, "PYSCF_TMPDIR=/nowhere", "unset PYSCF_TMPDIR", 7),
    ("PySCF", {}, "5 of 5 parsers", None, 0),
)


@pytest.mark.parametrize(("name", "changes", "text", "fix", "code"), TRAPS)
def test_one_trap(sound, name, changes, text, fix, code):
    variables = {key: value for key, value in changes.items() if key.isupper()}
    versions = {
        key: value for key, value in changes.items() if isinstance(value, str) and not key.isupper()
    }
    fields = {
        key: value for key, value in changes.items() if key not in variables and key not in versions
    }
    finding = inspect(name, replace(having(sound, variables, **versions), **fields))
    check(finding, text, fix=fix, status="fail" if code else "warn", code=code)
    assert listing(sound.folder) == {}


def test_python_disk_and_memory(sound, monkeypatch):
    check(inspect("libraries", sound), f"python {sys.version_info[0]}.{sys.version_info[1]}.")
    with monkeypatch.context() as planted:
        planted.setattr(sys, "version_info", (3, 10, 4, "final", 0))
        found = inspect("libraries", sound)
    check(found, "3.10.4", fix="environment with python>=3.11", status="fail", code=1)
    with monkeypatch.context() as planted:
        planted.setattr(resources, "free_disk", lambda folder: 10**6)
        check(inspect("scratch", sound), "1.00 MB free: little", fix="export PYSCF_TMPDIR=")
        check(inspect("working directory", sound), "little", fix="--output")
    monkeypatch.setattr(resources, "available_memory", lambda: 16 * 10**9)
    check(inspect("memory", sound), "16.00 GB available, no control group limit")
    plant(sound, "/sys/fs/cgroup/memory.max", "max\n")
    check(inspect("memory", sound))
    (version2, version1) = (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    )
    plant(sound, version1, f"{2**63 - 4096}\n")  # none
    check(inspect("memory", sound), "no control group limit")
    monkeypatch.setattr(resources, "available_memory", lambda: 900_000_000)
    for file in (version1, version2):
        plant(sound, file, "1000000000\n")
        check(
            inspect("memory", sound),
            "900.00 MB available",
            "control group limit 1.00 GB",
            fix="end other programs",
        )
        (sound.root / file.lstrip("/")).unlink()
    monkeypatch.setattr(resources, "available_memory", lambda: 2 * 10**9)
    check(inspect("memory", sound))
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda kind: (8 * 10**9, 9 * 10**9))
    check(inspect("memory", sound), "limits addresses to 8.00 GB", fix="ulimit -v unlimited")


def test_a_disk_that_changes_what_is_written(sound, monkeypatch):
    changed = SimpleNamespace(mp2_total_energy=-1.0)
    monkeypatch.setattr("dfmp2.output.hdf5.read", lambda path: changed)
    found = inspect("working directory", sound)
    check(found, "what was read is not what was written", fix="--output", status="fail", code=7)
    assert listing(sound.folder) == {}


def test_requirements_are_those_of_the_metadata():
    """pyproject.toml names what pip installs, with oldest versions only; extras are left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = doctor.oldest_versions(Surroundings().requirements or ())
    found = [f"{name}>={oldest}" for name, oldest in needed.items()]
    assert sorted(found) == sorted(
        [*project["dependencies"], f"python{project['requires-python']}"]
    )
    assert len(found) >= 8
    assert all(re.fullmatch(r"\d+\.\d+", oldest) for oldest in needed.values())


def test_torch(sound, monkeypatch):
    check(inspect("PyTorch", sound))
    plant(sound, "/proc/driver/nvidia/version")
    check(
        inspect("PyTorch", sound), "NVIDIA driver, but no PyTorch", fix="pip install 'dfmp2[torch]'"
    )
    for found, text, fix in (
        (("2.9.0+cpu", None, None, False), "2.9.0+cpu", None),
        (("2.13.0", "12.8", "NVIDIA H200", True), "CUDA 12.8, NVIDIA H200", None),
        (("2.8.1", None, None, False), "2.8.1", "'torch>=2.9'"),
        (("2.9.0+cpu", None, None, True), "but an NVIDIA driver", "CUDA build"),
        (("2.9.0", "12.8", None, True), "no CUDA device", "nvidia-smi"),
    ):
        check(doctor.judge_torch(*found), text, fix=fix)
    here = replace(having(sound, torch="2.9.0"), root=sound.root / "empty")
    for code, said in (
        ("raise ImportError('libcudart.so.12')", "libcudart.so.12"),
        ("import os; os._exit(9)", "code 9"),
    ):
        monkeypatch.setattr(doctor, "TORCH_PROBE", code)
        check(inspect("PyTorch", here), "2.9.0 does not import", said, fix="reinstall torch")


def test_another_dfmp2_comes_first(sound, tmp_path):
    other = program(tmp_path / "other" / "dfmp2")
    program(sound.prefix / "bin" / "dfmp2")
    paths = [str(sound.prefix / "bin"), str(other.parent)]
    check(inspect("dfmp2", having(sound, {"PATH": ":".join(paths)})))
    finding = inspect("dfmp2", having(sound, {"PATH": ":".join(reversed(paths))}))
    check(finding, f"{other} comes first", fix=f"put {sound.prefix / 'bin'} first on PATH")
    check(inspect("dfmp2", replace(sound, version={}.get)), "not installed", fix="pip install .")


def test_files_that_shadow_modules(sound):
    (sound.folder / "scipy").mkdir()  # a folder of results
    (sound.folder / "molecules.py").touch()
    check(inspect("module path", sound))
    check(inspect("module path", replace(sound, folder=Path(dfmp2.__file__).parents[1])))
    here = replace(sound, path=("", *sound.path))
    check(
        inspect("module path", having(here, {"PYTHONPATH": "."})),
        "through PYTHONPATH",
        fix="unset PYTHONPATH",
    )
    for name in ("torch.py", "dfmp2.py", "basis_set_exchange.py"):
        (sound.folder / name).touch()
        check(inspect("module path", sound), f"{name} in the working", fix="rename it")
        (sound.folder / name).unlink()
    for name in ("pyscf/__init__.py", "json.py", "nki.py"):
        file = sound.folder / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
        check(
            inspect("module path", sound),
            name.split("/")[0],
            "would be, with PYTHONPATH=.",
            fix="rename it",
        )
    here = replace(sound, path=(str(sound.folder),))
    check(
        inspect("module path", here),
        "json.py, nki.py, pyscf",
        "is imported in place of a library",
        fix="rename it",
    )


def test_cpu_quota(sound):
    """150 ms per 100 ms are one and a half cores, of the group or of one that it is in."""
    plant(sound, "/sys/fs/cgroup/cpu.max", "max 100000\n")
    check(inspect("threads", sound), "no quota")
    plant(sound, "/sys/fs/cgroup/cpu.max", "150000 100000\n")
    check(inspect("threads", sound), "1 usable (8 by affinity, quota 1.5)")
    check(
        inspect("threads", having(sound, {"OMP_NUM_THREADS": "8"})),
        "8 is more",
        fix="export OMP_NUM_THREADS=1",
    )
    plant(sound, "/proc/self/cgroup", "3:cpuacct,cpu:/job\n0::/job/step\n")
    plant(sound, "/sys/fs/cgroup/job/cpu.max", "125000 100000\n")
    check(inspect("threads", sound), "1 usable (8 by affinity, quota 1.25)")
    plant(sound, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n")
    plant(sound, "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    check(inspect("threads", sound), "1 usable (8 by affinity, quota 0.5)")
    plant(sound, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n")
    check(inspect("threads", sound), "quota 1.25")


# --- Neuron ---------------------------------------------------------------------------------------


@pytest.fixture
def trainium(sound: Surroundings) -> Surroundings:
    """A trn1 host on which everything is right."""
    plant(sound, "/dev/neuron0")
    plant(sound, diagnosis.PRODUCT, "trn1.2xlarge\n")
    program(sound.root / "opt/aws/neuron/bin/neuron-ls")
    own = [program(sound.prefix / "bin" / name) for name in ("libneuronpjrt-path", "neuronx-cc")]
    path = f"{own[0].parent}:{sound.root}/opt/aws/neuron/bin:/usr/bin"
    variables = {
        "PATH": path,
        "NEURON_CC_FLAGS": "--auto-cast=none",
        "NEURON_COMPILE_CACHE_URL": str(sound.folder),
    }
    versions = {
        "nki": "0.6.0",
        "neuronx_cc": "2.26.6360.0",
        "torch_neuronx": "2.9.0.2.15.32035",
        "torch_xla": "2.9.0",
    }
    return having(sound, variables, torch="2.9.0", libneuronxla="2.2.16408.0", **versions)


def neuron(host: Surroundings) -> dict[str, Diagnosis]:
    """Findings by name without "Neuron"."""
    found = diagnosis.diagnose(host)
    return {
        name.removeprefix("Neuron").strip(): Diagnosis(status, detail, fix)
        for name, status, detail, fix in found
    }


def test_no_device_is_one_quiet_line(sound, trainium):
    noisy = replace(having(trainium, {"NKI_SIMULATOR": "1"}), root=sound.root / "empty")
    assert diagnosis.diagnose(noisy) == [("Neuron", "ok", "no Neuron device", "")]


@pytest.mark.parametrize(("name", "version"), PLACEHOLDERS.items())
def test_placeholders_are_known_by_version(trainium, name, version):
    """The four placeholders on PyPI, which install but raise on import, are recognised without
    importing them."""
    assert name.replace("-", "_") not in sys.modules
    fake = having(trainium, **{name.replace("-", "_"): version})
    [found] = neuron(replace(fake, root=trainium.root / "empty")).values()
    check(
        found,
        f"no Neuron device; {name} {version}",
        "placeholder",
        fix=f"pip uninstall {name} and install it from",
    )
    check(neuron(fake)["packages"], f"{name} {version} from PyPI", fix="AWS's own package index")


def test_a_trainium_host(trainium):
    found = neuron(trainium)
    assert {finding.status for finding in found.values()} == {"ok"}, found
    assert found["device"].detail == "1 device (trn1.2xlarge)"
    bare = replace(trainium, version={"torch-xla": "2.9.0"}.get)
    check(neuron(bare)["lanes"], "nki: nki is not installed", fix="AWS's own package index")
    mixed = neuron(having(trainium, torch="2.10.0"))["lanes"]
    check(mixed, "torch 2.10.0 and torch-xla 2.9.0 do not", fix="install torch 2.9.0")


@pytest.mark.parametrize(
    ("variables", "text", "fix"),
    [
        ({"NKI_SIMULATOR": "1"}, "NKI_SIMULATOR=1: kernels would be simulated", "unset NKI_SIM"),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"}, "but the device is a trn1", "unset NEURON_P"),
        ({"NEURON_RT_VISIBLE_CORES": "all"}, "=all: this names no cores", "0,1 or 0-1"),
    ],
)
def test_variables_that_keep_the_lanes_from_running(trainium, variables, text, fix):
    check(neuron(having(trainium, variables))["lanes"], text, fix=fix)


# --- the default run ------------------------------------------------------------------------------


def test_expected_energies_are_pyscfs():
    mol = gto.M(atom="H 0 0 0; H 0 0 1.4", unit="Bohr", basis="sto-3g", verbose=0)
    mf = scf.RHF(mol).density_fit(auxbasis="def2-universal-jkfit").run()
    assert mf.e_tot == pytest.approx(doctor.SCF_ENERGY, abs=1e-12)
    assert DFRMP2(mf, auxbasis="def2-svp-ri").kernel() == pytest.approx(
        doctor.CORRELATION_ENERGY, abs=1e-12
    )


def test_a_wrong_energy_fails(sound):
    check(inspect("default run", sound), "H2/sto-3g on c")  # cpu or cuda
    result, _ = doctor.default_result()
    wrong = replace(
        result, pairs=replace(result.pairs, opposite_spin=result.pairs.opposite_spin - 2e-8)
    )
    finding = doctor.judge_run(wrong, 0.1)
    check(finding, "E(corr) -2e-08 Eh", fix="do not trust this installation", status="fail", code=8)


def test_result_file(sound, monkeypatch):
    check(inspect("working directory", sound), "a result was written, locked, read and removed")

    def unlocked(path: Path) -> MP2Result:
        raise ResultFileError(f"{path}: not a readable HDF5 file (unable to lock file, errno = 37)")

    monkeypatch.setattr("dfmp2.output.hdf5.read", unlocked)
    check(
        inspect("working directory", sound),
        "no file locks",
        fix="export HDF5_USE_FILE_LOCKING=FALSE",
    )
    full = replace(sound, folder=Path("/proc"))
    check(inspect("working directory", full), "cannot write", fix="--output", status="fail", code=7)
    assert listing(sound.folder) == {}


# --- the command ----------------------------------------------------------------------------------

# The command without PyTorch: importing it takes longer than everything else together.
WITHOUT_TORCH = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from dfmp2.validation import doctor; del doctor.CHECKS['PyTorch']; "
    "from dfmp2.cli.main import main; sys.exit(main(sys.argv[1:]))",
)


def test_command(call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(doctor.CHECKS, "PyTorch")
    before = listing(folder)
    done = succeed(call("doctor", "--json"))
    assert (done.json["works"], done.json["exit_code"]) == (True, 0)
    names = [check["name"] for check in done.json["checks"]]
    assert names[-2:] == ["scratch", "default run"]
    assert len(names) == len(set(names)) == 10  # without PyTorch, with Neuron
    assert all(list(check) == ["name", "status", "detail", "fix"] for check in done.json["checks"])
    assert listing(folder) == before


@pytest.mark.parametrize(
    "library", [pytest.param("filelock", marks=pytest.mark.slow), "jinja2", "click", "numpy"]
)
def test_a_missing_library_fails_as_the_run_does(folder: Path, library: str) -> None:
    """A library in the metadata is missing: the doctor says so, or fails like every command; a run
    without NumPy ends in a traceback."""
    planted = (
        *WITHOUT_TORCH[:-1],
        WITHOUT_TORCH[-1].replace(";", f"; sys.modules[{library!r}] = None;", 1),
    )
    done = run_command("doctor", cwd=folder, program=planted)
    assert done.code == 1
    if library != "jinja2":  # needed only by report pages
        run = run_command("run", "h2.xyz", "--basis", "sto-3g", cwd=folder, program=planted)
        assert run.code == 1
    if library == "click":
        return
    assert f"import of {library} halted" in done.out and "Traceback" not in done.err
    assert "the default run does not work (exit code 1)" in done.out


@pytest.mark.slow
def test_what_lies_in_the_folder_is_reported_and_not_run(folder: Path):
    for name in (".pyscf_conf.py", "numpy.py", "torch.py"):
        (folder / name).write_text("import pathlib; pathlib.Path('marker').touch()\n")
    variables = {"HOME": str(folder), "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "true"}
    done = run_command("doctor", cwd=folder, env=variables)
    assert (done.code, done.err) == (0, "")
    assert not (folder / "marker").exists()
    for text in (
        "numpy.py, torch.py in the working directory",
        "OMP_PROC_BIND=true",
    ):
        assert text in done.out
    assert "ok   PyTorch" in done.out
    assert done.out.splitlines()[-1].startswith("dfmp2 doctor: the default run works, ")


def test_exit_code_is_that_of_the_run(folder: Path):
    # By themselves codes 7 and 3
    variables = {"PYSCF_TMPDIR": "/nowhere", "PYSCF_MAX_MEMORY": "lots"}
    run = run_command("run", "h2.xyz", "--basis", "sto-3g", cwd=folder, env=variables)
    done = run_command("doctor", cwd=folder, env=variables, program=WITHOUT_TORCH)
    assert done.code == run.code == 3
    assert "fail scratch" in done.out and "fail PySCF" in done.out
    rows = [Diagnosis("warn", ""), Diagnosis("fail", "", "", 7), Diagnosis("fail", "", "", 3)]
    assert (exit_code(rows), exit_code(rows[:1])) == (7, 0)  # the first of several failures counts
    verdict = "dfmp2 doctor: the default run does not work (exit code 7), 1 warning"
    assert checks._verdict(rows, 7) == verdict


def test_a_blas_that_keeps_its_threads_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dfmp2.host.threads.openblas", lambda: {"/a/one.so": 1, "/b/two.so": 2})
    assert doctor._stubborn_blas() == ["two.so"]


def test_a_folder_that_is_gone(tmp_path: Path):
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@" doctor'
    arguments = ["sh", "-c", script, "sh", *WITHOUT_TORCH]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "fail working directory" in done.stdout
    assert "Traceback" not in done.stderr
