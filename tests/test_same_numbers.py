"""What is the same by every route of a calculation: its warnings and its numbers."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pyscf import scf
from scipy.spatial.transform import Rotation

import dfmp2
from dfmp2.errors import Interrupted
from dfmp2.execution.items import compute_item, read_input
from dfmp2.execution.manifest import read_manifest
from dfmp2.execution.pool import WorkerShare
from dfmp2.interop.qcschema import answer, read_request, run
from dfmp2.options import BEFORE_PAIRS, BOTH_PARTS, PAIRS
from dfmp2.output import hdf5
from dfmp2.output.checkpoint import VARIABLE
from tests.awkward import (
    CHARGES,
    EXACT,
    MOLECULES,
    mean_field,
    read,
    semicanonical,
    singles_energies,
    spin_energies,
)
from tests.conftest import MOLECULES as TEXTS
from tests.conftest import Heard, run_here, succeed, work_here
from tests.cuts import cut_small
from tests.faults import Stopping
from tests.sessions import leaves
from tests.test_disk import set_variant
from tests.test_energy_shards import HerePool, flags, pooled

# --- warnings -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_a_warning_is_heard_once_for_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of frozen cores that programs count differently; that results keep it is among their numbers
    below."""
    monkeypatch.setenv("DFMP2_CHECKPOINT_SECONDS", "0")
    path, kept = tmp_path / "nah.xyz", tmp_path / "r.h5"
    path.write_text(TEXTS["nah"])
    heard: dict[str, Heard] = {}

    def hears(name: str) -> dict[str, Any]:
        heard[name] = Heard()
        given = {"basis": "sto-3g", "frozen_core": "auto", "threads": 1, "stability": "off"}
        return {"listener": heard[name], **given}

    dfmp2.gradient(path, **hears("gradient"))
    dfmp2.prepare(path, output=tmp_path / "p.h5", **hears("prepare"))
    heard["energy"] = Heard()
    dfmp2.energy(tmp_path / "p.h5", threads=1, listener=heard["energy"])
    with Stopping(at_tile=1), pytest.raises(Interrupted):
        dfmp2.run(path, checkpoint=kept, **hears("stopped"))
    (warning,) = dfmp2.run(path, checkpoint=kept, **hears("resumed")).diagnostics.warnings
    assert "programs freeze different numbers of orbitals" in warning
    frames = [dfmp2.Molecule.from_xyz(path)] * 2
    study = dfmp2.scan(frames, chained=False, output=tmp_path / "s.h5", **hears("scan"))
    assert [warned.text for warned in study.all_warnings] == [warning]
    for name, listener in heard.items():
        assert listener.warnings.count(warning) == (2 if name == "scan" else 1), name


# --- numbers --------------------------------------------------------------------------------------

FACTORS = {"method": "custom-scs-mp2", "os_scale": 1.15, "ss_scale": 0.4}
UHF = {**EXACT, **FACTORS, "frozen_core": "auto", "frozen_virtual": 2, "stability": "full"}
CASES: dict[str, tuple[dfmp2.Molecule, dict[str, Any]]] = {
    "uhf": (MOLECULES["borane cation"].in_field(CHARGES), UHF),
    "rohf": (  # with singles
        MOLECULES["methylene"],
        {**EXACT, **FACTORS, "reference": "rohf", "frozen_core": "1", "frozen_virtual": 1},
    ),
    "rhf": (  # with a ghost, a core potential, general contractions and a warning
        read("", "Rb 0 0 0", "O 0.3 0 2.2", "H 0.3 0.8 2.6", "@He -1.6 0.3 0.9"),
        {
            **EXACT,
            **FACTORS,
            "basis": "cc-pvdz,Rb=def2-svp",
            "auxbasis": "def2-universal-jkfit",
            "frozen_core": "auto",
            "stability": "auto",
        },
    ),
    "conventional": (
        MOLECULES["methylene"],
        {
            **EXACT,
            **FACTORS,
            "frozen_core": "1",
            "scf": "conventional",
            "scf_auxbasis": None,
            "stability": "off",
        },
    ),
    "mixed": (MOLECULES["borane cation"], {**UHF, "precision": "mixed"}),
    "repeated": (MOLECULES["borane cation"], {**UHF, "precision": "auto", "tolerance": 1e-13}),
}
OWN_SCF = ("basis", "reference", "scf", "scf_auxbasis", "scf_conv_tol", "auxbasis")


class Case:
    """A molecule of CASES, and a folder in which it is computed by one route."""

    def __init__(self, name: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.molecule, self.options = CASES[name]
        self.name, self.folder, self.patch = name, folder, patch

    def whole(self, **changes: Any) -> Any:
        """By `dfmp2.run`."""
        return dfmp2.run(self.molecule, **{**self.options, **changes}, listener=Heard())

    def some(self, names: Iterable[str]) -> dict[str, Any]:
        """Some of its options."""
        return {name: value for name, value in self.options.items() if name in names}

    def prepared(self) -> Path:
        """A prepared file."""
        path = self.folder / "x.prepared.h5"
        before = self.some((*BEFORE_PAIRS, *BOTH_PARTS))
        dfmp2.prepare(self.molecule, output=path, **before, listener=Heard())
        return path

    def second(self) -> dict[str, Any]:
        """Options of the second part."""
        return self.some((*PAIRS, *BOTH_PARTS))

    def flags(self, options: dict[str, Any]) -> list[str]:
        """Options on the command line, where factors alone make a method of its own."""
        return flags({name: value for name, value in options.items() if name != "method"})

    def field(self) -> dict[str, Any]:
        """Keywords of its point charges, if it has any, as rows."""
        charges = self.molecule.point_charges
        if charges is None:
            return {}
        return {"point_charges": charges.tolist(), "point_charge_units": "bohr"}

    def field_in_a_file(self) -> dict[str, Any]:
        """The same with the name of a file in its folder."""
        keywords = self.field()
        if keywords:
            np.savetxt(self.folder / "field.txt", keywords["point_charges"], fmt="%.17g")
            keywords["point_charges"] = "field.txt"
        return keywords

    def mean_field(self) -> Any:
        """PySCF's own."""
        if self.name == "rhf":
            basis = {"default": "cc-pvdz", "Rb": "def2-svp", "GHOST-He": "cc-pvdz"}
            return mean_field(self.molecule, scf.RHF, basis=basis, ecp={"Rb": "def2-svp"})
        kind = scf.ROHF if self.name == "rohf" else scf.UHF
        return mean_field(self.molecule, kind, fitted=self.name != "conventional")


def on_disk(case: Case) -> Any:
    """With everything on disk, as little as possible in memory."""
    set_variant(case.patch, disk=True)
    return case.whole()


def in_small_blocks(case: Case, *, disk: bool = False, **changes: Any) -> Any:
    """With all work cut small, among three threads."""
    cut_small(case.patch, whole_of(case.name).sizes, disk=disk)
    return case.whole(threads=3, **changes)


def stopped(case: Case, *, disk: bool = False, **how: Any) -> Any:
    """Stopped, once or again and again, and continued with the same call."""
    case.patch.setenv(VARIABLE, "0")
    if disk:
        set_variant(case.patch, disk=True)
    again = partial(case.whole, checkpoint=case.folder / "x.h5")
    stops = 0
    with Stopping(**how):
        for _ in range(40 if "every" in how else 1):
            try:
                return again()
            except Interrupted:
                stops += 1
    assert stops == 1
    return again()


def in_two_parts(case: Case, *, disk: bool = False) -> Any:
    if disk:
        set_variant(case.patch, disk=True)
    return dfmp2.energy(case.prepared(), **case.second(), listener=Heard())


def by_command(case: Case, *words: str) -> None:
    succeed(run_here(*words, "--quiet", cwd=case.folder))


def in_shards(case: Case) -> Any:
    case.prepared()
    command = ("energy", "--from", "x.prepared.h5", *case.flags(case.second()), "--output", "x.h5")
    for index in (2, 0, 1):
        by_command(case, *command, "--shard", f"{index}/3")
    by_command(case, *command, "--collect")
    return dfmp2.read(case.folder / "x.h5")


def by_workers(case: Case) -> Any:
    case.prepared()
    case.patch.chdir(case.folder)
    return pooled(HerePool(2), **case.second())


def derived(case: Case) -> Any:
    given = {"method": "mp2", "os_scale": None, "ss_scale": None, "frozen_core": "none"}
    return dfmp2.derive(
        case.whole(**given), **case.some(("frozen_core", *FACTORS)), listener=Heard()
    )


def on_mean_field(case: Case) -> Any:
    given = {name: value for name, value in case.options.items() if name not in OWN_SCF}
    return dfmp2.from_mean_field(
        case.mean_field(), case.options["auxbasis"], **given, listener=Heard()
    )


def request_of(case: Case) -> dict[str, Any]:
    """An AtomicInput of version 1, without threads, which QCEngine itself decides."""
    options, molecule = dict(case.options), case.molecule
    del options["threads"]
    return {
        "molecule": {
            "symbols": list(molecule.symbols),
            "geometry": molecule.coordinates.ravel().tolist(),
            "real": [not ghost for ghost in molecule.ghost],
            "molecular_charge": molecule.charge,
            "molecular_multiplicity": molecule.multiplicity,
            "fix_com": True,
            "fix_orientation": True,
        },
        "driver": "energy",
        "model": {"method": options.pop("method"), "basis": options.pop("basis")},
        "keywords": options | case.field(),
    }


def by_qcschema(case: Case) -> Any:
    request = read_request(request_of(case))
    found = answer(request, run(request, threads=1, listener=Heard()))
    whole = whole_of(case.name)
    parts = {"SINGLES": whole.mp2_singles_energy, "DOUBLES": whole.pairs.correlation_energy}
    for name, energy in parts.items():
        near = pytest.approx(energy, abs=1e-10)
        assert found["properties"][f"mp2_{name.lower()}_energy"] == near
        assert found["extras"]["qcvars"][f"MP2 {name} ENERGY"] == near
    return found["extras"]["dfmp2"]


def by_qcengine(case: Case) -> Any:
    qcengine = pytest.importorskip("qcengine")
    pytest.importorskip("dfmp2.interop.qcengine").register()
    how = {"raise_error": True, "task_config": {"ncores": 2}}
    found = qcengine.compute(request_of(case), "dfmp2", **how).extras["dfmp2"]
    assert found["provenance"]["threads"] == 2
    return found


def with_counterpoise(case: Case) -> Any:
    """As the fragment of a complex in which the ghost is an atom."""
    complex_ = replace(case.molecule, ghost=(False,) * case.molecule.natom)
    study = dfmp2.interaction(complex_, fragments="1-3,4", **case.options, listener=Heard())
    return study.runs["fragment-1-in-complex"]


def by_ase(case: Case) -> Any:
    calculator = pytest.importorskip("dfmp2.interop.ase").DFMP2
    atoms = replace(case.molecule, point_charges=None).to_ase()
    atoms.calc = calculator(**case.options, **case.field(), listener=Heard())
    energy = atoms.get_potential_energy()
    assert energy == pytest.approx(whole_of(case.name).total_energy * 27.211386, rel=1e-7)  # eV
    return atoms.calc.result


def in_a_batch(case: Case, **more: Any) -> Any:
    """As an item of a manifest, whose file says neither charge nor multiplicity."""
    bare = replace(case.molecule, point_charges=None, charge=0, multiplicity=1)
    (case.folder / "x.xyz").write_text(re.sub("charge.*", "", bare.to_xyz()))
    state = {"charge": case.molecule.charge, "multiplicity": case.molecule.multiplicity}
    given = {**case.options, **state, **case.field_in_a_file(), **more}
    del given["threads"]
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    (case.folder / "m.toml").write_text(
        "\n".join(['output = "out"', "[[item]]", 'molecule = "x.xyz"', *lines])
    )
    (item,) = read_manifest(case.folder / "m.toml").items
    row = compute_item(read_input(item), None, None, "", WorkerShare(1, 10**10))
    return dfmp2.read(str(row.output))


def energies_of_a_batch(case: Case) -> dict[str, Any]:
    """All that an item keeps without its arrays."""
    return in_a_batch(case, keep="energies").to_dict()


def in_a_batch_of_python(case: Case) -> Any:
    work_here(case.patch)
    found = dfmp2.batch({"x / 2": case.molecule}, output=case.folder / "out", **case.options)
    return found["x / 2"]


def in_a_scan(case: Case, **more: Any) -> Any:
    """As the last of two geometries."""
    other = replace(case.molecule, coordinates=1.01 * case.molecule.coordinates)
    given = {**case.options, **more}
    dfmp2.scan([other, case.molecule], **given, output=case.folder / "s.h5", listener=Heard())
    _, found = dfmp2.read_study(case.folder / "s.h5").runs.values()
    return found


def in_a_shared_scan(case: Case, **more: Any) -> Any:
    work_here(case.patch)
    return in_a_scan(case, workers=2, chained=False, **more)


def by_the_program(case: Case) -> Any:
    (case.folder / "x.xyz").write_text(case.molecule.to_xyz())
    given = case.flags({**case.options, **case.field_in_a_file()})
    by_command(case, "run", "x.xyz", *given, "--output", "x.h5")
    return dfmp2.read(case.folder / "x.h5")


def with_gradient(case: Case) -> Any:
    return dfmp2.gradient(case.molecule, **case.options, listener=Heard()).result


def restarted(case: Case, compute: Any) -> Any:
    """From its own orbitals."""
    dfmp2.write(whole_of(case.name), case.folder / "start.h5")
    found = compute(case, scf_from=str(case.folder / "start.h5"))
    assert found.reference.cycles < 3 < whole_of(case.name).reference.cycles
    return found


def stored(case: Case) -> Any:
    dfmp2.write(whole_of(case.name), case.folder / "x.h5")
    return dfmp2.read(case.folder / "x.h5")


ROUTES: dict[str, tuple[Any, tuple[str, ...]]] = {  # and the molecules that go by them
    "on disk": (on_disk, ("conventional",)),
    "on disk, in small blocks": (partial(in_small_blocks, disk=True), ("rhf",)),
    "in small blocks": (in_small_blocks, ("rohf",)),
    "stopped again and again": (partial(stopped, every=5), ("uhf",)),
    "stopped at a tile": (partial(stopped, at_tile=4), ("rohf", "repeated")),
    "stopped on disk": (partial(stopped, every=11, disk=True), ("rhf",)),
    "prepared": (in_two_parts, ("rohf", "rhf", "conventional")),
    "prepared, on disk": (partial(in_two_parts, disk=True), ("uhf",)),
    "in shards": (in_shards, ("mixed",)),
    "by workers": (by_workers, ("repeated",)),
    "derived": (derived, ("rohf",)),
    "mean field": (on_mean_field, ("uhf", "rhf", "conventional")),
    "QCSchema": (by_qcschema, ("uhf", "rohf", "rhf")),
    "QCEngine": (by_qcengine, ("uhf",)),
    "counterpoise": (with_counterpoise, ("rhf",)),
    "ASE": (by_ase, ("uhf",)),
    "batch": (in_a_batch, ("rhf",)),
    "energies of a batch": (energies_of_a_batch, ("uhf",)),
    "batch of Python": (in_a_batch_of_python, ("rohf",)),
    "scan": (in_a_scan, ("uhf",)),
    "program": (by_the_program, ("uhf",)),
    "gradient": (with_gradient, ("uhf",)),
    "start orbitals of a batch": (partial(restarted, compute=in_a_batch), ("rohf",)),
    "start orbitals of a shared scan": (
        partial(restarted, compute=in_a_shared_scan),
        ("conventional",),
    ),
    "stored": (stored, ("uhf", "rhf")),
    "torch": (partial(in_small_blocks, backend="torch"), ("mixed",)),
    "device": (
        partial(in_small_blocks, backend="nki-interpreter", transform="device"),
        ("mixed",),
    ),
}
IN_ANOTHER_ORDER = ("torch", "device")  # sums of float32
# Routes whose SCF takes other steps to the same orbitals, whose signs are arbitrary
OTHER_STEPS = (
    "stopped again and again",
    "stopped on disk",
    "mean field",
    "QCEngine",  # which rounds coordinates to 1e-8 bohr
    "scan",
    "start orbitals of a batch",
    "start orbitals of a shared scan",
)
# Times and sizes, which must be there
MEASURED = re.compile("timings/|predicted/|memory/|storage/")
# Who computed, from which file, and what names it gave
ITS_OWN = re.compile(
    "provenance|preparation|threads|options/(memory|backend|scf_from|transform)|run/backend"
    "|json/backend|json/name$|input/(name|source|text)|frozen_core_note"
)
# How the SCF went, not where it ended, and the estimate of what is left of its convergence
STEPS = re.compile(
    "cycles|history|operations|ladder|scf_start|reference/start|iterations|scf_convergence"
    "|rotation_left|solutions|error_budget/(mp2_|reaction|scf_|summary)"
)
# PySCF's memory limit, the atoms as text, and places that it fills in when it computes
OF_THE_LIBRARY = re.compile(r"/(max_memory|atom|_enuc|_env/1?\d)")
ADDED = {  # parts that only this route has
    "gradient": re.compile("gradient|properties"),
    "mean field": re.compile("bases/.*/(elements|sha256|name)|options/|json/bas"),
}
PRECISION = re.compile("certificate|error_budget|precision/")
DISK_WORK = re.compile("operations")  # the response is multiplied out again rather than kept


@cache
def whole_of(name: str) -> Any:
    """The first route: `dfmp2.run` in memory."""
    return Case(name, Path(), pytest.MonkeyPatch()).whole()


@cache
def leaves_of_whole(name: str) -> dict[str, Any]:
    """The leaves of the first route, not to be changed."""
    return leaves_of(whole_of(name))


def leaves_of(result: Any) -> dict[str, Any]:
    """All numbers and texts of a result by their path: its JSON, and its file unless that is all
    there is."""
    if isinstance(result, dict):
        return {f"json{path}": value for path, value in leaves(result)}
    found = {f"json{path}": value for path, value in leaves(result.to_dict())}
    with h5py.File(io.BytesIO(hdf5.to_bytes(result))) as handle:

        def note(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and name != "mol":
                found[name] = item[()]

        handle.visititems(note)
        for path, value in leaves(json.loads(handle["mol"][()])):
            if not OF_THE_LIBRARY.fullmatch(path):
                found[f"mol{path}"] = value
    return found


ROUNDING = (1e-10, 1e-10)  # Eh, allowed for energies and for everything else
CONVERGENCE = (1e-8, 2e-6)
FLOAT32 = (1e-6, 1e-10)


def same_leaf(path: str, one: Any, two: Any, near: tuple[float, float]) -> bool:
    """Whether two leaves agree; orbitals may have other signs."""
    one, two = np.asarray(one), np.asarray(two)
    if one.shape != two.shape or {one.dtype.kind, two.dtype.kind} - set("fiu"):
        return bool(np.array_equal(one, two))
    if path.endswith(("mo_coeff", "mo_coupling")):
        one, two = np.abs(one), np.abs(two)
    allowed = near[1]
    if re.search("energies/|_energy$|pairs/|e_tot", path):
        allowed = near[0]
    return bool(np.allclose(one, two, rtol=10 * near[1], atol=allowed, equal_nan=True))


def different(
    expected: dict[str, Any],
    found: dict[str, Any],
    near: tuple[float, float],
    may_differ: Iterable[re.Pattern[str]],
) -> list[tuple[str, Any, Any]]:
    """Leaves that differ, or that only one of two results has."""
    compared = [
        path
        for path in {**expected, **found}
        if not any(pattern.search(path) for pattern in may_differ)
    ]
    assert len(compared) > 100
    pairs = [(path, expected.get(path, "missing"), found.get(path, "missing")) for path in compared]
    return [leaf for leaf in pairs if not same_leaf(*leaf, near)]


@pytest.mark.parametrize(
    ("route", "name"), [(route, name) for route, (_, names) in ROUTES.items() for name in names]
)
def test_every_route_gives_the_same_numbers(
    route: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = leaves_of_whole(name)
    compute, _ = ROUTES[route]
    found = leaves_of(compute(Case(name, tmp_path, monkeypatch)))
    if not any(path.startswith("scf/") for path in found):
        expected = {path: value for path, value in expected.items() if path.startswith("json")}
    may_differ = [ITS_OWN, MEASURED]
    near = ROUNDING
    if route in OTHER_STEPS:
        near = CONVERGENCE
        may_differ.append(STEPS)
    elif route in IN_ANOTHER_ORDER:
        near = FLOAT32
        may_differ.append(PRECISION)
    if route in ADDED:
        may_differ.append(ADDED[route])
    if "disk" in route:
        may_differ.append(DISK_WORK)
    assert different(expected, found, near, may_differ) == []
    for path in {**expected, **found}:
        assert not MEASURED.search(path) or path in expected.keys() & found.keys(), path


def test_a_fragment_keeps_state_and_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A charged radical beside a helium atom, with its own functions, is that alone."""
    case = Case("uhf", tmp_path, monkeypatch)
    case.options = {**case.options, "frozen_virtual": 0, "stability": "off"}
    both = replace(
        case.molecule,
        symbols=(*case.molecule.symbols, "He"),
        coordinates=np.vstack([case.molecule.coordinates, [-5.5, -3.0, 3.0]]),
        ghost=(),
    )
    states: dict[str, Any] = {"charges": "1,0", "multiplicities": "2,1"}
    study = dfmp2.interaction(both, fragments="1-4,5", **states, **case.options, listener=Heard())
    expected, found = (leaves_of(one) for one in (case.whole(), study.runs["fragment-1-alone"]))
    assert different(expected, found, ROUNDING, [ITS_OWN, MEASURED]) == []


@pytest.mark.parametrize("name", CASES)
def test_the_first_route_gives_pyscfs_numbers(name: str) -> None:
    ours = whole_of(name)
    mf = Case(name, Path(), pytest.MonkeyPatch()).mean_field()
    core, virtual = ours.sizes.frozen_core, ours.sizes.frozen_virtual
    assert core == 1 and virtual == CASES[name][1].get("frozen_virtual", 0)
    assert ours.scf_total_energy == pytest.approx(mf.e_tot, abs=1e-9)
    singles = 0.0
    if name == "rohf":
        mf, couplings = semicanonical(mf)
        singles = sum(singles_energies(mf, couplings, core, virtual))
    if name == "rhf":
        mf = mf.to_uhf()
    same, opposite = spin_energies(mf, core, virtual, ours.options.auxbasis)
    near = 1e-6 if name == "mixed" else 1e-8
    assert ours.mp2_same_spin_correlation_energy == pytest.approx(same, abs=near)
    assert ours.mp2_opposite_spin_correlation_energy == pytest.approx(opposite, abs=near)
    assert ours.mp2_singles_energy == pytest.approx(singles, abs=1e-8)
    scaled = 1.15 * opposite + 0.4 * same + singles
    assert ours.correlation_energy == pytest.approx(scaled, abs=near)
    assert ours.total_energy == pytest.approx(mf.e_tot + scaled, abs=near)
    assert ours.precision == ("mixed" if name == "mixed" else "fp64")


# --- blocks ---------------------------------------------------------------------------------------

RADICAL = read("multiplicity=2", "C 0 0 0", "O 0.1 0 1.2", "H 0.95 0.2 -0.5").in_field(
    [*CHARGES, [-3.9, -4.2, 2.2, 0.2], [5.5, 3.5, -2.0, -0.6]]
)
METHYLENE = MOLECULES["methylene"].in_field(CHARGES)
ALL = {**EXACT, "stability": "off"}
FROZEN = {**ALL, "frozen_core": "1"}


def gradient_of(molecule: dfmp2.Molecule, **options: Any) -> Any:
    return dfmp2.gradient(molecule, **options, listener=Heard()).result


def energy_of(molecule: dfmp2.Molecule, **options: Any) -> Any:
    return dfmp2.run(molecule, **options, listener=Heard())


BLOCKS: dict[str, tuple[Any, dfmp2.Molecule, dict[str, Any]]] = {
    "uhf": (gradient_of, RADICAL, {**FROZEN, **FACTORS, "frozen_virtual": 2}),
    "rhf, in float32": (
        gradient_of,
        read("charge=-1", "C 0 0 0", "N 0.1 0.2 1.16", "@H 0.9 0.3 -0.6"),
        {**FROZEN, "precision": "mixed", "stability": "full"},
    ),
    "double hybrid": (gradient_of, METHYLENE, {**FROZEN, "method": "b2plyp", "grid": "20,50"}),
    "rohf in a solvent": (
        energy_of,
        MOLECULES["methylene"],
        {**ALL, "reference": "rohf", "solvent": "water"},
    ),
    "far apart": (  # with pairs of functions that are left out
        energy_of,
        read("multiplicity=2", "H 0 0 0", "O 2 14 3", "H 2.4 14.3 3.8", "H 2.2 14.7 2.4"),
        {**EXACT, "certify_fit": True, "stability": "full"},
    ),
    "damped": (energy_of, RADICAL, {**FROZEN, "method": "kappa-mp2"}),
    "rpa": (energy_of, RADICAL, {**FROZEN, "method": "drpa"}),
    "laplace": (
        energy_of,
        MOLECULES["methylene"],
        {**FROZEN, "reference": "rohf", "method": "sos-laplace", "tolerance": 1e-9},
    ),
}
IN_MEMORY = ("double hybrid", "rohf in a solvent")
MATRICES = ("rpa", "laplace")
ON_DISK = ("uhf", "rhf, in float32", "far apart", "damped", *MATRICES)


@cache
def uncut(name: str) -> Any:
    compute, molecule, options = BLOCKS[name]
    return compute(molecule, **options)


@pytest.mark.usefixtures("coarse_grid_error")
@pytest.mark.parametrize(
    ("name", "disk"), [*((name, False) for name in IN_MEMORY), *((name, True) for name in ON_DISK)]
)
def test_no_number_depends_on_how_work_is_cut(
    name: str, disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, molecule, options = BLOCKS[name]
    expected = uncut(name)
    cut_small(monkeypatch, expected.sizes, disk=disk, matrices=name in MATRICES)
    found = compute(molecule, **{**options, "threads": 3})
    may_differ = [ITS_OWN, MEASURED, re.compile("gradient[/_]seconds")]
    if disk:
        may_differ.append(DISK_WORK)
    near = ROUNDING
    if expected.precision == "mixed":
        near = (1e-7, 2e-6)
        may_differ.append(PRECISION)
    assert different(leaves_of(expected), leaves_of(found), near, may_differ) == []


def test_results_turn_with_the_molecule() -> None:
    """Atoms and charges turned, moved and in another order at once."""
    turn, shift = Rotation.from_rotvec([0.4, -1.1, 2.0]).as_matrix(), np.array([3.0, -7.0, 11.0])
    charges = RADICAL.point_charges[::-1].copy()
    charges[:, :3] = charges[:, :3] @ turn + shift
    moved = replace(
        RADICAL,
        symbols=RADICAL.symbols[::-1],
        coordinates=RADICAL.coordinates[::-1] @ turn + shift,
        point_charges=charges,
    )
    _, _, options = BLOCKS["uhf"]
    found, expected = gradient_of(moved, **options), uncut("uhf")
    assert found.total_energy == pytest.approx(expected.total_energy, abs=1e-9)
    ours, theirs = found.gradient, expected.gradient
    pairs = {
        "atoms": (ours.total_gradient, theirs.total_gradient[::-1] @ turn),
        "charges": (ours.point_charge_gradient, theirs.point_charge_gradient[::-1] @ turn),
        "dipole": (found.properties.dipole, expected.properties.dipole @ turn),
        "mulliken": (
            found.properties.mulliken_charges,
            expected.properties.mulliken_charges[:, ::-1],
        ),
        "lowdin": (found.properties.lowdin_charges, expected.properties.lowdin_charges[:, ::-1]),
        "lowdin spin": (
            found.properties.lowdin_spin_populations,
            expected.properties.lowdin_spin_populations[:, ::-1],
        ),
    }
    for name, (turned, before) in pairs.items():
        np.testing.assert_allclose(turned, before, atol=1e-7, err_msg=name)
