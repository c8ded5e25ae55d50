"""Every trap planted once: the doctor must name it, with a fix; and its exit code is that of a run."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyscf import gto, scf
from pyscf.mp.dfmp2_native import DFRMP2

import dfmp2
from dfmp2.doctor import folders, machine, neuron, packages, trial
from dfmp2.doctor.examination import exit_code
from dfmp2.doctor.finding import Finding, Surroundings, observe
from dfmp2.errors import ResultFileError
from dfmp2.result import MP2Result
from tests.conftest import listing, run_command, succeed

GIGABYTE = 10**9


@pytest.fixture
def sound(tmp_path: Path) -> Surroundings:
    """A machine without any trap, its system files below a folder."""
    for folder in ("work", "home", "root"):
        (tmp_path / folder).mkdir()
    return Surroundings(
        environ={"HOME": str(tmp_path / "home"), "PATH": "/usr/bin", "TMPDIR": str(tmp_path)},
        folder=tmp_path / "work",
        home=tmp_path / "home",
        root=tmp_path / "root",
        prefix=tmp_path / "venv",
        path=("/usr/lib/python3",),
        cores=8,
        version={"dfmp2": "1", "numpy": "2.1", "scipy": "1.14", "h5py": "3.11", "click": "8.1.7"}.get,
    )


def having(s: Surroundings, variables: Mapping[str, str] | None = None, **versions: str) -> Surroundings:
    """The same with more environment variables and installed distributions ("_" for "-")."""
    known = {name.replace("_", "-"): version for name, version in versions.items()}
    return replace(
        s, environ={**s.environ, **(variables or {})}, version=lambda name: known.get(name) or s.version(name)
    )


def plant(s: Surroundings, file: str, text: str = "") -> Path:
    """A system file."""
    path = s.root / file.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def bad(finding: Finding, *texts: str, fix: str, status: str = "warn", code: int = 0) -> None:
    assert (finding.status, finding.exit_code) == (status, code), finding
    for text in texts:
        assert text in finding.detail
    assert fix in finding.fix
    assert "\n" not in finding.detail + finding.fix


# --- packages ---------------------------------------------------------------------------------------


def test_python_too_old():
    bad(packages.check_python((3, 10, 4)), "3.10.4", fix="install Python 3.11", status="fail", code=1)
    assert packages.check_python((3, 12, 0)).status == "ok"


def test_libraries(sound):
    assert packages.check_libraries(sound).status == "ok"
    old = having(sound, scipy="1.9.3")
    bad(packages.check_libraries(old), "scipy 1.9.3", "scipy too old", fix="pip install 'scipy>=1.11'")
    none = replace(sound, version={"numpy": "2.1"}.get)
    finding = packages.check_libraries(none)
    bad(finding, "h5py missing", fix="pip install scipy h5py click", status="fail", code=1)


def test_pyscf_shield_is_closed():
    finding = packages.check_pyscf()
    assert finding.status == "ok"
    assert "5 of 5 parsers" in finding.detail


def test_basis_set_exchange(sound):
    assert "optional: pip install 'dfmp2[bse]'" in packages.check_exchange(sound).detail
    assert "basis-set-exchange 0.11" in packages.check_exchange(having(sound, basis_set_exchange="0.11")).detail


def test_psi4(sound, tmp_path):
    assert packages.check_psi4(replace(sound, environ={})).detail.startswith("not on PATH")
    other = program(tmp_path / "other" / "psi4")
    assert str(other) in packages.check_psi4(having(sound, {"PATH": str(other.parent)})).detail


def test_torch(sound):
    assert packages.check_torch(sound, None).status == "ok"
    plant(sound, "/proc/driver/nvidia/version")
    bad(packages.check_torch(sound, None), "NVIDIA driver, but no PyTorch", fix="pip install 'dfmp2[torch]'")
    judge = packages.judge_torch
    assert judge("2.9.0+cpu", None, None, False).status == "ok"
    assert judge("2.13.0", "12.8", "NVIDIA H200", True).status == "ok"
    bad(judge("2.8.1", None, None, False), "2.8.1", fix="'torch>=2.9'")
    bad(judge("2.9.0+cpu", None, None, True), "but an NVIDIA driver", fix="CUDA build")
    bad(judge("2.9.0", "12.8", None, True), "no CUDA device", fix="nvidia-smi")


def test_a_torch_that_does_not_import(sound):
    s = having(sound, torch="2.9.0")
    for code, said in (
        ("raise ImportError('libcudart.so.12')", "libcudart.so.12"),
        ("import os; os._exit(9)", "code 9"),
    ):
        probe = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        bad(packages.check_torch(s, probe), "2.9.0 does not import", said, fix="reinstall torch")


def test_another_dfmp2_comes_first(sound, tmp_path):
    other = program(tmp_path / "other" / "dfmp2")
    program(sound.prefix / "bin" / "dfmp2")
    paths = [str(sound.prefix / "bin"), str(other.parent)]
    assert packages.check_command(having(sound, {"PATH": ":".join(paths)})).status == "ok"
    finding = packages.check_command(having(sound, {"PATH": ":".join(reversed(paths))}))
    bad(finding, f"{other} comes first", fix=f"put {sound.prefix / 'bin'} first on PATH")
    bad(packages.check_command(replace(sound, version={}.get)), "not installed", fix="pip install .")


@pytest.mark.parametrize("name", ["numpy.py", "pyscf/__init__.py", "json.py", "torch.py"])
def test_files_that_shadow_modules(sound, name):
    assert packages.check_module_path(sound).status == "ok"
    file = sound.folder / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    finding = packages.check_module_path(sound)
    bad(finding, name.split("/")[0], "would be, with PYTHONPATH=.", fix="rename it")
    here = replace(sound, path=(str(sound.folder),))
    bad(packages.check_module_path(here), "is imported in place of a library", fix="rename it")


def test_what_shadows_nothing(sound):
    (sound.folder / "scipy").mkdir()  # a folder of results
    (sound.folder / "molecules.py").touch()
    assert packages.check_module_path(sound).status == "ok"
    source = replace(sound, folder=Path(dfmp2.__file__).parents[1])
    assert packages.check_module_path(source).status == "ok"
    here = replace(having(sound, {"PYTHONPATH": "."}), path=("", *sound.path))
    bad(packages.check_module_path(here), "through PYTHONPATH", fix="unset PYTHONPATH")


# --- machine ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "text", "fix"),
    [
        ({"OMP_NUM_THREADS": "64"}, "OMP_NUM_THREADS=64 is more", "export OMP_NUM_THREADS=8"),
        ({"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS=1 is fewer", "unset OMP_NUM_THREADS, or run with --threads 8"),
        ({"OMP_NUM_THREADS": "many"}, "is no number", "unset OMP_NUM_THREADS"),
        ({"OMP_PROC_BIND": "true"}, "OMP_PROC_BIND=true may pin all workers", "unset OMP_PROC_BIND"),
        ({"GOMP_CPU_AFFINITY": "0-3"}, "GOMP_CPU_AFFINITY=0-3", "unset GOMP_CPU_AFFINITY"),
    ],
)
def test_thread_variables(sound, variables, text, fix):
    bad(machine.check_threads(having(sound, variables)), "8 usable", text, fix=fix)


def test_sound_thread_variables(sound):
    for variables in ({}, {"OMP_NUM_THREADS": "8,1"}, {"OMP_PROC_BIND": "FALSE"}):
        assert machine.check_threads(having(sound, variables)).status == "ok"
    finding = machine.check_threads(having(sound, {"MKL_NUM_THREADS": "4"}))
    assert (finding.status, finding.detail[-35:]) == ("ok", "; a run overrides MKL_NUM_THREADS=4")


def test_cpu_quota(sound):
    """150 ms of every 100 ms are one and a half cores."""
    plant(sound, machine.QUOTA, "max 100000\n")
    assert "8 usable (8 by affinity, no quota)" in machine.check_threads(sound).detail
    plant(sound, machine.QUOTA, "150000 100000\n")
    assert "1 usable (8 by affinity, quota 1.5)" in machine.check_threads(sound).detail
    finding = machine.check_threads(having(sound, {"OMP_NUM_THREADS": "8"}))
    bad(finding, "8 is more", fix="export OMP_NUM_THREADS=1")


def test_cpu_quota_of_the_old_control_groups(sound):
    plant(sound, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n")
    plant(sound, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    bad(machine.check_threads(sound), "quota 2", "a run would start 8", fix="export OMP_NUM_THREADS=2")
    plant(sound, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert machine.check_threads(sound).status == "ok"


def test_blas_is_named():
    finding = machine.check_blas()
    assert finding.status == "ok"
    assert "NumPy: " in finding.detail


def test_memory(sound):
    assert machine.check_memory(sound, 16 * GIGABYTE).detail == "16.00 GB available, no control group limit"
    plant(sound, "/sys/fs/cgroup/memory.max", "max\n")
    assert machine.check_memory(sound, 16 * GIGABYTE).status == "ok"
    plant(sound, "/sys/fs/cgroup/memory.max", "1000000000\n")
    finding = machine.check_memory(sound, 900_000_000)
    bad(finding, "900.00 MB available", "control group limit 1.00 GB", fix="end other programs or raise")


def test_clock():
    now = 1.8e9
    assert machine.check_clock(now + 1, now - 100, now).status == "ok"
    assert machine.check_clock(None, now, now).status == "ok"
    bad(machine.check_clock(now + 90, now, now), "is 90 s ahead of it", fix="synchronise the clocks")
    bad(machine.check_clock(now - 90, now, now), "is 90 s behind it", fix="synchronise the clocks")
    bad(machine.check_clock(now, now + 10 * 86400, now), "was installed 10 days later", fix="set the clock")


# --- folders and streams ----------------------------------------------------------------------------


def test_working_directory(sound):
    assert folders.check_output_folder(sound).status == "ok"
    assert listing(sound.folder) == {}
    gone = replace(sound, folder=sound.folder / "gone")
    bad(folders.check_output_folder(gone), "there is no folder", fix="--output", status="fail", code=3)
    shut = replace(sound, folder=Path("/proc"))  # nobody, root included, can make a file there
    bad(folders.check_output_folder(shut), "cannot write into /proc", fix="--output", status="fail", code=7)


def test_scratch(sound, tmp_path):
    assert str(tmp_path) in folders.check_scratch(sound).detail
    finding = folders.check_scratch(having(sound, {"TMPDIR": "/nowhere"}))
    bad(finding, "TMPDIR=/nowhere cannot be written", fix="unset TMPDIR")
    finding = folders.check_scratch(having(sound, {"PYSCF_TMPDIR": "/nowhere"}))
    bad(finding, "PYSCF_TMPDIR=/nowhere", fix="unset PYSCF_TMPDIR", status="fail", code=7)
    little = pytest.MonkeyPatch()
    little.setattr(folders, "free_disk", lambda folder: 10**6)
    bad(folders.check_scratch(sound), "1.00 MB free: little", fix="export PYSCF_TMPDIR=")
    bad(folders.check_output_folder(sound), "little", fix="--output")
    little.undo()


def test_home(sound):
    assert folders.check_home(sound).status == "ok"
    bad(folders.check_home(replace(sound, home=None)), "HOME is not set", fix="export HOME=")
    bad(folders.check_home(replace(sound, home=Path("/nowhere"))), "is no folder", fix="export HOME=")


@pytest.mark.parametrize("place", ["folder", "home"])
def test_hostile_pyscf_configuration(sound, place, tmp_path):
    assert folders.check_pyscf_configuration(sound).status == "ok"
    file = getattr(sound, place) / ".pyscf_conf.py"
    file.write_text("raise SystemExit('executed')")
    bad(folders.check_pyscf_configuration(sound), str(file), "ignored by dfmp2", fix="remove it")


def test_pyscf_variables(sound):
    finding = folders.check_pyscf_configuration(having(sound, {"PYSCF_EXT_PATH": "/elsewhere"}))
    bad(finding, "PYSCF_EXT_PATH=/elsewhere", fix="remove it")


def test_text(sound):
    def stream(encoding: str) -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BytesIO(), encoding=encoding)

    utf8 = stream("utf-8")
    assert folders.check_text(sound, (utf8, utf8)).status == "ok"
    german = having(sound, {"LC_ALL": "de_DE.UTF-8"})
    assert folders.check_text(german, (utf8, utf8)).status == "ok"
    bad(folders.check_text(sound, (stream("latin-1"), utf8)), "stdout latin-1", fix="export PYTHONUTF8=1")
    bad(folders.check_text(sound, (utf8, None)), "stderr closed", fix="both streams open")


def test_numbers_are_read_whatever_the_locale_says(monkeypatch):
    assert folders.numbers_survive("de_DE.UTF-8")
    assert folders.numbers_survive("no_such_locale")

    class Read:
        class molecule:  # noqa: N801 - stands for an attribute
            coordinates = dfmp2.Molecule(("He",), [[0, 0, 15.0]]).coordinates

    monkeypatch.setattr("dfmp2.io.xyz.parse_xyz", lambda *_, **__: Read)
    assert not folders.numbers_survive("C")


# --- Neuron -----------------------------------------------------------------------------------------


@pytest.fixture
def trainium(sound: Surroundings) -> Surroundings:
    """A trn1 host on which everything is right."""
    plant(sound, "/dev/neuron0")
    plant(sound, neuron.PRODUCT, "trn1.2xlarge\n")
    program(sound.root / "opt/aws/neuron/bin/neuron-ls")
    own = [program(sound.prefix / "bin" / name) for name in ("libneuronpjrt-path", "neuronx-cc")]
    path = f"{own[0].parent}:{sound.root}/opt/aws/neuron/bin:/usr/bin"
    variables = {"PATH": path, "NEURON_CC_FLAGS": "--auto-cast=none", "NEURON_COMPILE_CACHE_URL": str(sound.folder)}
    packages = {"nki": "0.5.0", "neuronx_cc": "2.26.6360.0", "torch_neuronx": "2.9.0.2.15.32035", "torch_xla": "2.9.0"}
    packages["libneuronxla"] = "2.2.16408.0"
    return having(sound, variables, torch="2.9.0", **packages)


def test_no_device_is_one_quiet_line(sound):
    noisy = having(sound, {"NKI_SIMULATOR": "1"}, nki="0.5.0")
    (finding,) = neuron.check_neuron(noisy)
    assert (finding.status, finding.detail, finding.fix) == ("ok", "no Neuron device", "")


@pytest.mark.parametrize(
    ("name", "version"),
    [("nki", "0.0.1"), ("neuronx-cc", "1.0.post1"), ("torch-neuronx", "1.0"), ("libneuronxla", "1.0")],
)
def test_placeholders_are_known_by_version(sound, trainium, name, version):
    """The four names PyPI holds (they install, and raise on import); nothing is imported to find out."""
    assert name.replace("-", "_") not in sys.modules
    fake = {name.replace("-", "_"): version}
    (finding,) = neuron.check_neuron(having(replace(sound, root=sound.root / "empty"), **fake))
    bad(finding, f"no Neuron device; {name} {version}", "placeholder", fix=f"pip uninstall {name}; for the real one")
    bad(neuron.check_neuron_packages(having(trainium, **fake)), f"{name} {version} from PyPI", fix="AWS's own index")


def test_a_sound_trainium_host(trainium):
    found = neuron.check_neuron(trainium)
    assert {finding.status for finding in found} == {"ok"}, found
    assert found[0].detail == "1 device (trn1.2xlarge)"


def test_neuron_packages(trainium):
    bare = replace(trainium, version={"torch-xla": "2.9.0"}.get)
    bad(neuron.check_neuron_packages(bare), "neither nki (to compile) nor nrtpy (to run)", fix="AWS's own index")
    bad(neuron.check_neuron_packages(having(trainium, nrtpy="0.2")), "nki and nrtpy clash", fix="an environment")
    bad(neuron.check_neuron_packages(having(trainium, torch="2.10.0")), "but torch 2.10.0", fix="install torch 2.9.0")


def test_neuron_path(trainium):
    path = trainium.environ["PATH"].split(":")
    last = having(trainium, {"PATH": ":".join(path[1:])})
    bad(neuron.check_neuron_path(last), "libneuronpjrt-path, neuronx-cc", fix=f"export PATH={path[0]}:$PATH")
    short = having(trainium, {"PATH": path[0]})
    bad(neuron.check_neuron_path(short), "neuron-ls is not on PATH", fix="export PATH=/opt/aws/neuron/bin:$PATH")
    lone = having(trainium, nrtpy="0.2")
    bad(neuron.check_neuron_path(lone), "nrtpy does not find", fix="LD_LIBRARY_PATH=/opt/aws/neuron/lib")
    found = having(lone, {"LD_LIBRARY_PATH": "/opt/aws/neuron/lib"})
    assert neuron.check_neuron_path(found).status == "ok"


@pytest.mark.parametrize(
    ("variables", "text", "fix"),
    [
        ({"NKI_SIMULATOR": "1"}, "simulated, not run", "unset NKI_SIMULATOR"),
        ({"PJRT_DEVICE": "CPU"}, "PJRT_DEVICE=CPU", "export PJRT_DEVICE=NEURON"),
        ({"NEURON_CC_FLAGS": "-O2"}, "lacks --auto-cast=none", "export NEURON_CC_FLAGS="),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}, "=trn3 on trn1.2xlarge", "unset NEURON_PLATFORM"),
        ({"NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"}, "differ from run to run", "ROUNDING_EN=0"),
    ],
)
def test_neuron_variables(trainium, variables, text, fix):
    bad(neuron.check_neuron_variables(having(trainium, variables)), text, fix=fix)


def test_neuron_variables_that_are_right(trainium):
    right = {"NKI_SIMULATOR": "0", "NEURON_CC_FLAGS": "-O2 --auto-cast none", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}
    assert neuron.check_neuron_variables(having(trainium, right)).status == "ok"


def test_compile_cache(trainium, monkeypatch):
    shut = having(trainium, {"NEURON_COMPILE_CACHE_URL": "/proc/cache"})
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path("/proc"))  # root may do everything there
    bad(neuron.check_compile_cache(shut), "/proc/cache cannot be written", fix="NEURON_COMPILE_CACHE_URL=")


def test_bucket_as_compile_cache(trainium):
    bucket = having(trainium, {"NEURON_COMPILE_CACHE_URL": "s3://bucket/prefix"})
    assert neuron.check_compile_cache(bucket).detail == "s3://bucket/prefix (not looked at)"


# --- the default run --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished() -> tuple[Finding, MP2Result]:
    finding, result = trial.check_default_run()
    assert result is not None
    return finding, result


def test_expected_energies_are_pyscfs():
    mol = gto.M(atom="H 0 0 0; H 0 0 1.4", unit="Bohr", basis="sto-3g", verbose=0)
    mf = scf.RHF(mol).density_fit(auxbasis="def2-universal-jkfit").run()
    assert mf.e_tot == pytest.approx(trial.SCF_ENERGY, abs=1e-12)
    assert DFRMP2(mf, auxbasis="def2-svp-ri").kernel() == pytest.approx(trial.CORRELATION_ENERGY, abs=1e-12)


def test_default_run(finished):
    assert finished[0].status == "ok", finished[0]
    assert "H2/sto-3g on cpu" in finished[0].detail or "on cuda" in finished[0].detail


def test_a_wrong_energy_fails(finished):
    pairs = replace(finished[1].pairs, opposite_spin=finished[1].pairs.opposite_spin - 2e-8)
    finding = trial.judge_run(replace(finished[1], pairs=pairs), 0.1)
    bad(finding, "E(corr) -2e-08 Eh", fix="do not trust this installation", status="fail", code=8)


def test_result_file(finished, sound, monkeypatch):
    assert trial.check_result_file(sound, finished[1]).status == "ok"

    def unlocked(path: Path) -> MP2Result:
        raise ResultFileError(f"{path}: not a readable HDF5 file (unable to lock file, errno = 37)")

    monkeypatch.setattr("dfmp2.io.hdf5.read", unlocked)
    bad(trial.check_result_file(sound, finished[1]), "no file locks", fix="export HDF5_USE_FILE_LOCKING=FALSE")
    full = replace(sound, folder=Path("/proc"))
    bad(trial.check_result_file(full, finished[1]), "cannot write", fix="--output", status="fail", code=7)
    assert listing(sound.folder) == {}


def test_exit_code_is_that_of_the_first_failure():
    rows = [Finding("a", "warn", ""), Finding("b", "fail", "", "", 7), Finding("c", "fail", "", "", 3)]
    assert exit_code(rows) == 7
    assert exit_code(rows[:1]) == 0


# --- the command ------------------------------------------------------------------------------------

# The command without PyTorch: importing it takes longer than everything else together.
WITHOUT_TORCH = (
    *(sys.executable, "-P", "-c"),
    "import sys; from dfmp2.doctor import packages; packages.start_torch_probe = lambda s: None; "
    "from dfmp2.cli.main import main; sys.exit(main(sys.argv[1:]))",
)


def test_command(folder: Path):
    before = listing(folder)
    done = succeed(run_command("doctor", "--json", cwd=folder, program=WITHOUT_TORCH))
    assert (done.json["works"], done.json["exit_code"]) == (True, 0)
    names = [check["name"] for check in done.json["checks"]]
    assert names[-2:] == ["default run", "result file"]
    assert len(names) == len(set(names)) >= 18
    assert all(set(check) == {"name", "status", "detail", "fix"} for check in done.json["checks"])
    assert listing(folder) == before


def test_a_broken_library(folder: Path):
    """NumPy is installed and does not import: a run would end in a traceback, the doctor must not."""
    broken = (
        *WITHOUT_TORCH[:-1],
        "import sys; sys.modules['numpy'] = None; " + WITHOUT_TORCH[-1].removeprefix("import sys; "),
    )
    done = run_command("doctor", cwd=folder, program=broken)
    assert done.code == 1
    assert "a library does not import: import of numpy halted" in done.out
    assert "Traceback" not in done.err


def test_what_lies_in_the_folder_is_reported_and_not_run(folder: Path):
    for name in (".pyscf_conf.py", "numpy.py", "torch.py"):
        (folder / name).write_text("import pathlib; pathlib.Path('marker').touch()\n")
    variables = {"HOME": str(folder), "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "true"}
    done = run_command("doctor", cwd=folder, env=variables)
    assert done.code == 0
    assert not (folder / "marker").exists()
    assert "warn PySCF configuration" in done.out
    assert "numpy.py, torch.py in the working directory" in done.out
    assert "OMP_PROC_BIND=true" in done.out
    assert done.out.splitlines()[-1].startswith("dfmp2 doctor: the default run works, ")
    assert done.err == ""


@pytest.mark.parametrize(
    ("variables", "code", "line"),
    [
        ({"PYSCF_TMPDIR": "/nowhere"}, 7, "fail scratch"),
        ({"PYSCF_MAX_MEMORY": "lots"}, 3, "fail PySCF"),
    ],
)
def test_exit_code_is_that_of_the_run(folder: Path, variables, code, line):
    run = run_command("run", "h2.xyz", "--basis", "sto-3g", cwd=folder, env=variables)
    done = run_command("doctor", cwd=folder, env=variables, program=WITHOUT_TORCH)
    assert done.code == run.code == code
    assert line in done.out
    assert done.out.splitlines()[-1].startswith(f"dfmp2 doctor: the default run does not work (exit code {code}), ")


def test_a_folder_that_is_gone(tmp_path: Path):
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@" doctor'
    arguments = ["sh", "-c", script, "sh", *WITHOUT_TORCH]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "fail working directory" in done.stdout
    assert "Traceback" not in done.stderr


def test_observe(monkeypatch):
    monkeypatch.delenv("HOME")
    assert observe().home is None
    assert observe().cores >= 1
    assert observe().version("numpy") is not None
    assert observe().version("no-such-distribution") is None
