"""Every keyword of Python's studies and batches reaches the function that uses it, each with a
distinct value; nothing is computed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dfmp2
from dfmp2.errors import InputError
from dfmp2.execution.items import ItemStatus
from dfmp2.interop import batch as batches
from dfmp2.interop import studies, thermochemistry
from dfmp2.molecule.molecule import Molecule
from dfmp2.options import Options
from dfmp2.progress import Silent
from dfmp2.studies.coordinate import Constraints
from dfmp2.studies.geometric_search import Search
from dfmp2.studies.ideal_gas import make_conditions
from dfmp2.studies.reaction import ReactionPlan
from tests.awkward import MOLECULES
from tests.recorded import recorded_error

RADICAL = MOLECULES["cyano radical"]


class Asked(dict[str, Any]):
    """The arguments given to the function that carries out a study."""

    def take(self, *given: Any, **named: Any) -> str:
        self.clear()
        self.update(named, given=given)
        return "the study"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    noted = Asked()
    for name in (
        *("optimize_geometry", "reaction_path", "harmonic_frequencies", "interaction_energy"),
        *("basis_set_limit", "scan_energies"),
    ):
        monkeypatch.setattr(studies, name, noted.take)

    def keeper(path: Path | None, **how: bool) -> Any:
        return SimpleNamespace(path=path, **how)

    monkeypatch.setattr(studies, "Keeper", keeper)
    monkeypatch.setattr(studies, "read_hessian", lambda path: f"Hessian of {path}")
    for name in ("make_thermochemistry", "rank_conformers", "reaction_energy"):
        monkeypatch.setattr(thermochemistry, name, noted.take)
    monkeypatch.setattr(thermochemistry, "read_hessian", lambda path: f"Hessian of {path}")
    monkeypatch.setattr(thermochemistry, "read_candidates", lambda files: list(files))
    return noted


def kept(asked: Asked, command: str, path: Path | None, *, overwrite: bool, resume: bool) -> None:
    """Check file, listener and name of a study."""
    keeper = asked["keeper"]
    assert (keeper.path, keeper.overwrite, keeper.resume) == (path, overwrite, resume)
    assert asked["command"] == command


HOW = {"threads": 3, "method": "scs-mp2"}
LEVEL = Options(basis="sto-3g", **HOW)


def test_an_optimisation_gets_what_it_was_given(asked: Asked, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    made = dfmp2.optimize(
        RADICAL,
        "sto-3g",
        freeze=[("xyz", "1")],
        fixed=[("bond", "1,2", 1.3)],
        constraints="$freeze",
        convergence="GAU_TIGHT",
        max_steps=7,
        transition_state=True,
        verify=True,
        start_hessian="h.h5",
        output=path,
        overwrite=True,
        listener=(listener := Silent()),
        charge=-1,
        multiplicity=1,
        **HOW,
    )
    assert made == "the study" and asked["listener"]._listener is listener
    molecule, level = asked["given"][:2]
    assert (molecule.charge, molecule.multiplicity) == (-1, 1)
    assert molecule.symbols == RADICAL.symbols and level == LEVEL
    assert asked["given"][2] == Search(
        constraints=Constraints((("xyz", "1"),), [("bond", "1,2", "1.3")], "$freeze", "angstrom"),
        convergence="GAU_TIGHT",
        max_steps=7,
        transition_state=True,
        verify=True,
    )
    assert asked["start_hessian"] == "Hessian of h.h5"
    kept(asked, "dfmp2.optimize", path, overwrite=True, resume=False)
    dfmp2.optimize(RADICAL, "sto-3g")
    assert asked["start_hessian"] is None and asked["given"][2].constraints.units == "angstrom"
    kept(asked, "dfmp2.optimize", None, overwrite=False, resume=False)


def test_a_path_and_frequencies_get_what_they_were_given(asked: Asked, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    dfmp2.irc(
        RADICAL,
        "sto-3g",
        start_hessian="h.h5",
        convergence="GAU_LOOSE",
        max_steps=9,
        output=str(path),
        resume=True,
        **HOW,
    )
    molecule, level, search, hessian = asked["given"]
    assert (molecule, level, hessian) == (RADICAL, LEVEL, "Hessian of h.h5")
    assert search == Search(convergence="GAU_LOOSE", max_steps=9)
    kept(asked, "dfmp2.irc", path, overwrite=False, resume=True)
    dfmp2.frequencies(
        RADICAL,
        "sto-3g",
        temperature=310.0,
        pressure=2e5,
        symmetry_number=3,
        displacement=0.01,
        allow_gradient=True,
        output=path,
        **HOW,
    )
    gas = make_conditions(temperature=310.0, pressure=2e5, symmetry=3)
    assert asked["given"] == (RADICAL, LEVEL, gas)
    assert (asked["displacement"], asked["allow_gradient"]) == (0.01, True)
    kept(asked, "dfmp2.frequencies", path, overwrite=False, resume=False)
    with recorded_error(InputError):
        dfmp2.frequencies(RADICAL, "sto-3g", resume=True)


@pytest.mark.parametrize(
    ("fragments", "text"), [("1,2", "1,2"), ([[1], [2]], "1,2"), ([[1, 2], [3]], "1+2,3")]
)
@pytest.mark.parametrize(
    ("charges", "of_charges"), [(None, None), ([1, -2], "1,-2"), ("0,1", "0,1")]
)
def test_an_interaction_gets_what_it_was_given(
    fragments: Any, text: str, charges: Any, of_charges: str | None, asked: Asked
) -> None:
    dfmp2.interaction(RADICAL, "sto-3g", fragments, charges=charges, multiplicities=(2, 3), **HOW)
    assert asked["given"] == (RADICAL, text, LEVEL)
    assert (asked["charges"], asked["multiplicities"]) == (of_charges, "2,3")
    kept(asked, "dfmp2.interaction", None, overwrite=False, resume=False)


def test_a_limit_has_its_formulas(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    composite = Asked()
    monkeypatch.setattr(studies, "at_level", composite.take)
    dfmp2.cbs(
        RADICAL,
        "cc-pv[dt]z",
        scf_formula="power",
        correlation_formula="truhlar",
        delta="ccsd(t)/cc-pvdz",
        delta_program="psi4",
        **HOW,
    )
    assert asked["given"] == (RADICAL, "the study")
    assert composite == {
        "given": (Options(basis="cc-pv[dt]z", **HOW),),
        "scf_formula": "power",
        "correlation_formula": "truhlar",
        "delta": "ccsd(t)/cc-pvdz",
        "delta_program": "psi4",
    }


def test_a_scan_gets_what_it_was_given(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    along, frames = Asked(), Asked()
    monkeypatch.setattr(studies, "along_written", along.take)
    monkeypatch.setattr(studies, "over_frames", frames.take)
    coordinate = ("bond", "1,2", "1:1.2:3")
    dfmp2.scan(RADICAL, "sto-3g", coordinate, moving="2", chained=False, units=None, **HOW)
    assert along == {
        "given": (RADICAL, (coordinate,), LEVEL),
        "units": "angstrom",
        "moving": "2",
        "chained": False,
        "convergence": None,
    }
    assert asked["given"] == ("the study",)
    kept(asked, "dfmp2.scan", None, overwrite=False, resume=False)
    two = [coordinate, ("bond", "1,2", [1.0])]
    dfmp2.scan(RADICAL, "sto-3g", two, relaxed=True, convergence="GAU_TIGHT", workers=2, **HOW)
    assert asked["elsewhere"].workers == 2
    assert along["given"] == (RADICAL, tuple(two), LEVEL) and along["chained"] is True
    assert (along["convergence"], along["moving"]) == ("GAU_TIGHT", None)
    path = tmp_path / "f.xyz"
    path.write_text("2\n\nC 0 0 0\nN 0 0 1.2\n2\n\nC 0 0 0\nN 0 0 1.3\n")
    (tmp_path / "field").mkdir()
    (tmp_path / "field" / "q.txt").write_text("# one\r3 0 0 0.5\r")
    (field,) = os.scandir(tmp_path / "field")
    dfmp2.scan(
        path,
        "sto-3g",
        chained=False,
        units="bohr",
        charge=1,
        multiplicity=3,
        point_charges=field,
        point_charge_units="bohr",
        **HOW,
    )
    (read, level), chained = frames["given"], frames["chained"]
    assert level == LEVEL and chained is False and len(read) == 2
    assert [one.coordinates[1, 2] for one in read] == [1.2, 1.3]
    assert {(one.charge, one.multiplicity) for one in read} == {(1, 3)}
    np.testing.assert_array_equal(read[1].point_charges, [[3.0, 0.0, 0.0, 0.5]])
    dfmp2.scan([RADICAL, RADICAL.with_state(1, 1)], "sto-3g")
    assert [one.charge for one in frames["given"][0]] == [0, 1]
    dfmp2.scan([RADICAL, RADICAL], "sto-3g", charge=-1, multiplicity=1)
    assert [one.charge for one in frames["given"][0]] == [-1, -1]
    for wrong in (
        {"relaxed": True},
        {"moving": "1"},
        {},
    ):
        with recorded_error(InputError):
            dfmp2.scan(RADICAL, "sto-3g", **wrong)


def test_a_reaction_gets_what_it_was_given(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    species = Asked()
    monkeypatch.setattr(thermochemistry, "read_species", species.take)
    for name in ("a", "b"):
        (tmp_path / f"{name}.xyz").write_text("2\n\nH 0 0 0\nH 0 0 0.8\n")
    dfmp2.reaction(
        [(2, tmp_path / "a.xyz"), RADICAL],
        f"3*{tmp_path}/b.xyz",
        "sto-3g",
        charges={"a": 1},
        multiplicities={"b": 3},
        symmetry_numbers={"a": 2},
        transition_states=["b"],
        units="bohr",
        optimize=True,
        frequencies=True,
        convergence="GAU_LOOSE",
        max_steps=5,
        temperature=320.0,
        standard_state="1M",
        scale=0.95,
        quasi_harmonic="grimme",
        cutoff=80.0,
        allow_gradient=True,
        workers=2,
        output=tmp_path / "x.h5",
        overwrite=True,
        **HOW,
    )
    reaction = next(one for one in species["given"] if hasattr(one, "transition_states"))
    assert [number for number, _ in reaction.reactants] == [2, 1]
    assert [number for number, _ in reaction.products] == [3]
    assert (reaction.charges, reaction.multiplicities) == ({"a": 1}, {"b": 3})
    assert (reaction.symmetry_numbers, list(reaction.transition_states)) == ({"a": 2}, ["b"])
    plan = next(one for one in asked["given"] if isinstance(one, ReactionPlan))
    gas = make_conditions(
        temperature=320.0,
        pressure=None,
        standard_state="1M",
        scale=0.95,
        quasi_harmonic="grimme",
        cutoff=80.0,
    )
    search = Search(convergence="GAU_LOOSE", max_steps=5)
    assert plan == ReactionPlan(search, frequencies=True, gas=gas, allow_gradient=True)
    assert asked["command"] == "dfmp2.reaction" and "elsewhere" in asked
    assert asked["elsewhere"].workers == 2
    assert species["given"][1] == "bohr"
    dfmp2.reaction(
        str(tmp_path / "a.xyz"), RADICAL, "sto-3g", pressure=2e5, optimize=True, frequencies=True
    )
    plan = next(one for one in asked["given"] if isinstance(one, ReactionPlan))
    assert (plan.optimize, plan.gas) == (Search(), make_conditions(pressure=2e5))


# --- stored Hessians and conformers ---------------------------------------------------------------


def test_thermochemistry_gets_its_conditions(asked: Asked) -> None:
    made = dfmp2.thermo(
        "x.h5",
        temperature=[300.0, 320.0],
        pressure="1e5:2e5:3",
        scale="auto",
        quasi_harmonic="truhlar",
        cutoff=70.0,
        isotopes=["H=2H"],
        symmetry_number=4,
    )
    assert made == "the study"
    expected = make_conditions(
        temperature=[300.0, 320.0],
        pressure="1e5:2e5:3",
        scale="auto",
        quasi_harmonic="truhlar",
        cutoff=70.0,
        isotopes=("H=2H",),
        symmetry=4,
    )
    assert asked["given"] == ("Hessian of x.h5", expected, "dfmp2.thermo")


def test_a_ranking_gets_its_conditions(asked: Asked, tmp_path: Path) -> None:
    for name in ("b", "a", "other"):
        (tmp_path / f"{name}.h5").touch()
    (tmp_path / "other.h5").rename(tmp_path / "other.txt")
    dfmp2.rank(
        tmp_path,
        by="gibbs",
        temperature=310.0,
        pressure=2e5,
        scale=0.97,
        quasi_harmonic="grimme",
        cutoff=60.0,
        degeneracies={"a": 3},
    )
    conditions = make_conditions(
        temperature=310.0, pressure=2e5, scale=0.97, quasi_harmonic="grimme", cutoff=60.0
    )
    assert asked["given"] == ([tmp_path / "a.h5", tmp_path / "b.h5"], conditions)
    assert (asked["quantity"], asked["degeneracies"]) == (thermochemistry.BY["gibbs"], {"a": 3})
    dfmp2.rank([tmp_path / "b.h5", str(tmp_path / "a.h5")])
    assert asked["given"][0] == [tmp_path / "b.h5", tmp_path / "a.h5"]
    assert asked["degeneracies"] == {} and asked["quantity"] == thermochemistry.BY[None]
    for wrong in ("enthalpy", ["energy"]):
        with recorded_error(InputError):
            dfmp2.rank(tmp_path, by=wrong)


@pytest.mark.parametrize(("open_items", "named"), [(2, "b, c"), (4, "b, c, d, ...")])
def test_items_of_a_batch_that_are_not_complete_are_left_out(
    open_items: int, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [SimpleNamespace(name="a", status="complete", output=tmp_path / "a.h5")]
    rows += [
        SimpleNamespace(name=name, status="pending", output="") for name in "bcde"[:open_items]
    ]
    monkeypatch.setattr(thermochemistry, "read_batch", lambda path: path)
    monkeypatch.setattr(thermochemistry, "look_items", lambda batch: rows)
    (tmp_path / "batch.toml").touch()
    warnings: list[str] = []
    assert thermochemistry.complete_files([tmp_path], warnings.append) == [tmp_path / "a.h5"]
    count = f"incomplete items are left out ({open_items} of {open_items + 1}): {named}"
    assert warnings == [f"{tmp_path}: {count}"]
    rows[1:] = []
    assert thermochemistry.complete_files([tmp_path / "x.toml"], warnings.append)[0].name == "a.h5"
    assert len(warnings) == 1


# --- batches --------------------------------------------------------------------------------------


class MadeUpRun:
    """A batch that computes nothing."""

    blocked = None
    last: Any = None

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.rows = {"a": "row of a"}
        MadeUpRun.last = self

    def require_surroundings(self) -> None:
        """Nothing is wrong with them."""

    def compute(self, pool: Any, workers: int) -> None:
        self.pool, self.workers = pool, workers

    def unwritable(self, blocked: Any) -> Exception:
        return dfmp2.DiskFull("made up")


def test_a_batch_gets_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Asked()
    monkeypatch.setattr(batches, "BatchRun", MadeUpRun)
    monkeypatch.setattr(batches, "local_pool", pools.take)
    monkeypatch.setenv("DFMP2_BACKEND", "torch")
    listener = Silent()
    found = dfmp2.batch(
        {"one": RADICAL, "two": RADICAL.with_state(1, 1)},
        "sto-3g",
        tmp_path / "out",
        workers=3,
        chained=True,
        listener=listener,
        task="optimize",
        memory="3GB",
        scratch=tmp_path,
        **HOW,
    )
    given = MadeUpRun.last.given
    batch = given["batch"]
    assert pools["given"] == (batch.device, 3, 3, 3 * 10**9)
    assert MadeUpRun.last.pool == "the study" and MadeUpRun.last.workers == 3
    assert (given["chained"], given["command"]) == (True, "dfmp2.batch")
    assert given["scratch"] == str(tmp_path) and given["mine"] == range(2)
    assert [item.name for item in batch.items] == ["one", "two"]
    asked = {(item.options.method, item.options.backend) for item in batch.items}
    assert asked == {("scs-mp2", "torch")}
    assert batch.optimizes and MadeUpRun.last.optimize is not None
    read = [Molecule.from_xyz(tmp_path / "out" / "molecules" / f"{n}.xyz") for n in ("one", "two")]
    assert [(one.charge, one.multiplicity) for one in read] == [(0, 2), (1, 1)]
    np.testing.assert_allclose(read[0].coordinates, RADICAL.coordinates, atol=1e-9)
    assert (found.output, list(found.rows)) == (tmp_path / "out", ["row of a"])
    (tmp_path / "m.toml").write_text(
        'basis = "sto-3g"\nmemory = "1GB"\n[[item]]\nmolecule = "out/molecules/one.xyz"\n'
    )
    elsewhere = {"output": tmp_path / "there", "memory": "2GB", "threads": 5}
    dfmp2.batch(tmp_path / "m.toml", scratch=tmp_path, **elsewhere)
    given = MadeUpRun.last.given
    (item,) = given["batch"].items
    assert item.options.backend == "auto"  # a manifest names its own
    assert pools["given"] == (given["batch"].device, 1, 5, 2 * 10**9)
    assert (given["scratch"], given["batch"].output) == (str(tmp_path), tmp_path / "there")
    with recorded_error(InputError):
        dfmp2.batch(tmp_path / "m.toml", task="gradient")
    monkeypatch.setattr(MadeUpRun, "blocked", "x")
    with recorded_error(dfmp2.DiskFull):
        dfmp2.batch([RADICAL], "sto-3g", tmp_path / "out2")
    for workers in (0, -1, 1.5, True):
        with recorded_error(InputError):
            dfmp2.batch([RADICAL], "sto-3g", tmp_path / "out3", workers=workers)
    with recorded_error(InputError):
        dfmp2.batch([MOLECULES["methanol radical in a field"]], "sto-3g", tmp_path / "out4")
    with recorded_error(InputError):
        dfmp2.batch([RADICAL], "sto-3g", tmp_path / "out5", methd="x")
    assert not (tmp_path / "out5").exists()


def test_a_batch_of_several_methods_names_none(tmp_path: Path) -> None:
    """An index of an earlier version leaves out the name of MP2; only its energies are MP2's."""
    rows = [
        ItemStatus("a", "a.xyz", "complete", output="a.h5", energy=-1.5),
        ItemStatus("b", "b.xyz", "complete", output="b.h5", energy=-2.5, method="SCS-MP2"),
        ItemStatus("c", "c.xyz", "failed", error="no such file"),
        ItemStatus("d", "d.xyz", remark="computed by another process"),
    ]
    found = batches.BatchResult(tmp_path, rows)
    assert (list(found), len(found), found.failed) == (["a", "b"], 2, {"c": "no such file"})
    assert str(found).splitlines()[0].split() == ["item", "status", "total", "energy", "/", "Eh"]
    for name in ("c", "d", "e"):
        with recorded_error(KeyError):
            found[name]
    pytest.importorskip("pandas")
    table = found.to_dataframe()[["mp2_total_energy", "total_energy"]].to_dict("list")
    assert list(map(str, table.values())) == ["[-1.5, nan, nan, nan]", "[-1.5, -2.5, nan, nan]"]


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize(
    ("asked", "task"),
    [({}, "energy"), ({"properties": True}, "properties"), ({"gradient": True}, "gradient")],
)
def test_a_plan_is_of_what_is_asked_for(
    asked: dict[str, Any], task: str, calibrate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}
    molecule = dfmp2.Molecule.from_string("H 0 0 0; F 0.1 0.2 0.9")

    def foresee(*_: Any, **how: Any) -> Any:
        told.update(how)
        raise InputError("enough")

    monkeypatch.setattr("dfmp2.interop.python.foresee", foresee)
    with pytest.raises(InputError, match="enough"):
        dfmp2.plan(molecule, "sto-3g", calibrate=calibrate, **asked)
    assert told == {"calibrate": calibrate, "task": task}
