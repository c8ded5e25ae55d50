"""The Python interface: typed keywords, molecules of all kinds, messages in Python terms, printed
results."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from pyscf import gto

import dfmp2
from dfmp2.errors import InputError
from dfmp2.interop.studies import StudyKeywords
from dfmp2.options import Keywords, MoleculeKeywords, Options
from dfmp2.options.methods import method_names
from dfmp2.output.text import report, study_report
from tests.conftest import MOLECULES
from tests.recorded import recorded_error, recorded_warning

ROOT = Path(__file__).parent.parent
WATER = "O 0 0 0.1173; H 0 0.7572 -0.4692; H 0 -0.7572 -0.4692"
HELIUMS = "He 0 0 0; He 0 0 2.9"
SMALL: dict[str, Any] = {"threads": 1, "precision": "fp64"}


@pytest.fixture(scope="module")
def result() -> dfmp2.MP2Result:
    return dfmp2.run(dfmp2.Molecule.from_string(WATER), "sto-3g", **SMALL)


# --- keywords -------------------------------------------------------------------------------------


def test_keywords_are_the_fields_of_options() -> None:
    """A new option needs its type in the part of `Keywords` to which it belongs."""
    hints = get_type_hints(Keywords)
    assert set(hints) == {field.name for field in fields(Options)} - {"basis"}
    for field in fields(Options):
        if field.name == "basis":
            continue
        literals = next((get_args(part) for part in (hints[field.name], *get_args(hints[field.name]))
                         if get_origin(part) is Literal), ())  # fmt: skip
        allowed = field.metadata["choices"]
        if field.name not in ("backend", "frozen_core", "method"):
            assert literals == allowed
        kinds = {
            kind
            for kind in (bool, int, float)
            if kind in (hints[field.name], *get_args(hints[field.name]))
        }
        expected = {"bool": bool, "int": int, "float": float}.get(str(field.type).partition(" ")[0])
        if field.name not in ("frozen_core", "grid"):
            assert kinds == ({expected} if expected else set()), field.name
        assert ("None" in str(field.type)) is (type(None) in get_args(hints[field.name])), (
            field.name
        )


def test_names_of_backends_and_cores_are_the_types() -> None:
    from dfmp2.backends.registry import names

    hints, cores = (
        get_type_hints(Keywords),
        next(f for f in fields(Options) if f.name == "frozen_core"),
    )
    assert list(get_args(hints["backend"])) == names()
    (dialects,) = (
        get_args(part) for part in get_args(hints["frozen_core"]) if get_origin(part) is Literal
    )
    assert {*dialects, "N"} == set(cores.metadata["metavar"].split("|"))
    assert list(get_args(hints["method"])) == method_names()


@pytest.mark.slow
def test_mypy_finds_the_mistakes_of_a_user() -> None:
    pytest.importorskip("mypy")
    script = Path("tests/data/user_script.py")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    wrong = [
        n
        for n, line in enumerate((ROOT / script).read_text().splitlines(), 1)
        if line.endswith("# wrong")
    ]
    found = re.findall(rf"^{script}:(\d+): error", done.stdout, re.MULTILINE)
    assert len(wrong) == 10 and [int(line) for line in found] == wrong, done.stdout + done.stderr


# --- what is refused ------------------------------------------------------------------------------


Call = Callable[[], Any]
REFUSED: dict[str, Call] = {
    "frozen_core=9 freezes": lambda: dfmp2.run(_water(), "sto-3g", frozen_core=9),
    "frozen_core is a list: expected": lambda: dfmp2.run(_water(), "sto-3g", frozen_core=[0]),  # type: ignore[arg-type]
    "scratch is a int: expected the path": lambda: dfmp2.run(_water(), "sto-3g", scratch=5),  # type: ignore[arg-type]
    'basis="sto-3": no basis set': lambda: dfmp2.plan(_water(), "sto-3"),
    "pass multiplicity=2": lambda: dfmp2.run(_water(), "sto-3g", charge=1),
    'method="mp3": expected one of': lambda: dfmp2.gradient(_water(), "sto-3g", method="mp3"),  # type: ignore[arg-type]
    'fragments="1-3" is one fragment': lambda: dfmp2.interaction(_water(), "sto-3g", "1-3"),
    "scf_from: the two basis sets": lambda: dfmp2.cbs(_water(), "cc-pv[dt]z", scf_from="x.h5"),
    "coordinate 'bnd': expected one of bond": lambda: dfmp2.scan(
        _water(), "sto-3g", ("bnd", "1,2", "1:2:3")
    ),
    "of 1 values: expected FROM:TO:POINTS": lambda: dfmp2.scan(
        _water(), "sto-3g", ("bond", "1,2", [1.0])
    ),
    "one geometry: name a coordinate": lambda: dfmp2.scan(_water(), "sto-3g"),
    "resume=True needs output=FILE": lambda: dfmp2.cbs(_water(), "cc-pv[dt]z", resume=True),
    "workers=0: expected a whole number": lambda: dfmp2.batch(
        {"w": _water()}, "sto-3g", "out", workers=0
    ),
    'workers="two": expected a whole number': lambda: dfmp2.frequencies(
        _water(),
        "sto-3g",
        workers="two",  # type: ignore[typeddict-item]
    ),
    'method="mp²"': lambda: dfmp2.run(_water(), "sto-3g", method="mp²"),
    "belongs to relaxed=True": lambda: dfmp2.scan(
        _water(), "sto-3g", ("bond", "1,2", [0.9, 1.0]), convergence="GAU_TIGHT"
    ),
    "workers=2: each point starts from the one before: add chained=False": lambda: dfmp2.scan(
        _water(), "sto-3g", ("bond", "1,2", "0.9:1.0:3"), workers=2
    ),
    "units ['bohr']: expected angstrom or bohr": lambda: dfmp2.run(
        ROOT / "inputs" / "h2o.xyz",
        "sto-3g",
        units=["bohr"],  # type: ignore[arg-type]
    ),
    "'a b' and 'a_b' would have the same file": lambda: dfmp2.batch(
        {"a b": _water(), "a_b": _water().with_state(1, 2)}, "sto-3g", "out"
    ),
    "output was not given": lambda: dfmp2.batch([_water()], "sto-3g"),
    "basis with a manifest": lambda: dfmp2.batch("batch.toml", "sto-3g"),
    "expected the path of an xyz file, a dfmp2.Molecule": lambda: dfmp2.run(7, "sto-3g"),  # type: ignore[arg-type]
    "dfmp2.Molecule.from_string reads it": lambda: dfmp2.run(WATER, "sto-3g"),
    "coordinate=[('bond', '1,2')]: expected a list such as [('bond', '1,2', '0.8": lambda: (
        dfmp2.scan(_water(), "sto-3g", ("bond", "1,2"))  # type: ignore[arg-type]
    ),
    "coordinate=5: expected a list such as": lambda: dfmp2.scan(_water(), "sto-3g", 5),  # type: ignore[arg-type]
    "coordinate=('bond', '1,2', 0.9): expected values": lambda: dfmp2.scan(
        _water(),
        "sto-3g",
        ("bond", "1,2", 0.9),  # type: ignore[arg-type]
    ),
    "freeze=('bond', '1,2'): expected a list such as [('bond', '1,2')]": lambda: dfmp2.optimize(
        _water(),
        "sto-3g",
        freeze=("bond", "1,2"),  # type: ignore[arg-type]
    ),
    "freeze=[('bond', 12)]: expected a list such as [('bond', '1,2')]": lambda: dfmp2.optimize(
        _water(),
        "sto-3g",
        freeze=[("bond", 12)],  # type: ignore[list-item]
    ),
    "fixed=[('bond', '1,2')]: expected a list such as": lambda: dfmp2.optimize(
        _water(),
        "sto-3g",
        fixed=[("bond", "1,2")],  # type: ignore[list-item]
    ),
    "convergence=None: expected one of": lambda: dfmp2.optimize(
        _water(),
        "sto-3g",
        convergence=None,  # type: ignore[arg-type]
    ),
    "fragments=[1, 2]: expected '1-3,4' or a list": lambda: dfmp2.interaction(
        _water(),
        "sto-3g",
        [1, 2],  # type: ignore[list-item]
    ),
    "multiplicities=2: expected 2 whole numbers": lambda: dfmp2.interaction(
        _water(),
        "sto-3g",
        "1,2-3",
        multiplicities=2,  # type: ignore[arg-type]
    ),
    "reactants=5: expected molecules": lambda: dfmp2.reaction(
        5,  # type: ignore[arg-type]
        "h2.xyz",
        basis="sto-3g",
    ),
    "expected molecules in a list, or a manifest": lambda: dfmp2.batch(
        _water(),  # type: ignore[arg-type]
        "sto-3g",
        "out",
    ),
    "frozen_core=4 freezes 4 orbitals of each spin": lambda: dfmp2.run(
        _water().with_state(0, 5), "6-31g", frozen_core=4
    ),
    "displacement=1.0: expected a number": lambda: dfmp2.frequencies(
        _water(), "sto-3g", displacement=1.0
    ),
}


def _water() -> dfmp2.Molecule:
    return dfmp2.Molecule.from_string(WATER)


@cache
def of_water() -> Any:
    """Its gradient, not to be changed."""
    return dfmp2.gradient(_water(), "sto-3g", **SMALL)


@cache
def of_heliums() -> Any:
    """Their interaction energy, not to be changed."""
    return dfmp2.interaction(dfmp2.Molecule.from_string(HELIUMS), "6-31g", "1,2", **SMALL)


@pytest.mark.parametrize("said", REFUSED)
def test_refusals_speak_of_keywords(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with recorded_error(dfmp2.Dfmp2Error) as refusal:
        REFUSED[said]()
    assert not re.search(" --[a-z]", str(refusal.value))


def test_a_warning_points_at_the_line_that_called(tmp_path: Path) -> None:
    """Through a run, with a checkpoint, and through ASE; a listener also gets it in Python
    terms."""
    # Angstrom taken for bohr
    far = dfmp2.Molecule(("O", "H"), np.array([[0, 0, 0], [0, 0, 0.96]]), charge=-1)

    def here(call: Call) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        (found,) = [one for one in caught if "covalent radii" in str(one.message)]
        assert found.filename == __file__ and 'units="bohr"' in str(found.message)
        return found.lineno

    allowed: dict[str, Any] = {**SMALL, "allow_small_gap": True}
    assert here(lambda: dfmp2.run(far, "sto-3g", **allowed)) == inspect.currentframe().f_lineno  # type: ignore[union-attr]
    here(lambda: dfmp2.run(far, "sto-3g", checkpoint=tmp_path / "x.h5", **allowed))
    ase = pytest.importorskip("ase")
    from dfmp2.interop.ase import DFMP2

    atoms = ase.Atoms("OH", [[0, 0, 0], [0, 0, 0.51]])
    atoms.calc = DFMP2("sto-3g", charge=-1, multiplicity=1, **allowed)
    here(atoms.get_potential_energy)


# --- molecules ------------------------------------------------------------------------------------


def test_molecules_of_qcelemental_are_read() -> None:
    given = dfmp2.Molecule.from_string(WATER, charge=1, multiplicity=2)
    document = {
        "symbols": list(given.symbols),
        "geometry": given.coordinates.ravel().tolist(),
        "molecular_charge": 1,
        "molecular_multiplicity": 2,
    }
    models = pytest.importorskip("qcelemental").models
    for room in (models.v1, models.v2):  # which round to 8 decimals
        one = dfmp2.Molecule.from_qcschema(room.Molecule(**document))
        np.testing.assert_allclose(one.coordinates, given.coordinates, atol=1e-8)
        assert (one.symbols, one.charge, one.multiplicity) == (given.symbols, 1, 2)


# --- functions beside run -------------------------------------------------------------------------


def test_a_scan_takes_a_range_a_list_or_geometries(tmp_path: Path) -> None:
    h2 = dfmp2.Molecule.from_string(MOLECULES["h2"])
    typed = dfmp2.scan(h2, "sto-3g", ("bond", "1,2", "0.7:0.8:3"), chained=False, **SMALL)
    listed = dfmp2.scan(h2, "sto-3g", ("bond", "1,2", [0.7, 0.75, 0.8]), chained=False, **SMALL)
    assert listed.table["bond_1_2"].values == (0.7, 0.75, 0.8)
    energies = typed.table["mp2_total_energy"].values
    assert listed.table["mp2_total_energy"].values == energies
    frames = [f"H 0 0 0; H 0 0 {z}" for z in (0.7, 0.75, 0.8)]
    given = dfmp2.scan(
        [dfmp2.Molecule.from_string(one) for one in frames], "sto-3g", chained=False, **SMALL
    )
    assert given.table["mp2_total_energy"].values == pytest.approx(energies, abs=1e-9)
    (tmp_path / "f.xyz").write_text(  # two are enough
        "".join(f"2\n\n{one.replace('; ', chr(10))}\n" for one in frames[:2])
    )
    read = dfmp2.scan(tmp_path / "f.xyz", "sto-3g", chained=False, **SMALL)
    assert read.table["mp2_total_energy"].values == given.table["mp2_total_energy"].values[:2]


def test_workers_share_the_runs_of_a_study() -> None:
    """Each run is bitwise that of a study without workers."""
    helium = dfmp2.Molecule.from_string(HELIUMS)
    alone = of_heliums()
    shared = dfmp2.interaction(helium, "6-31g", "1,2", **SMALL, workers=2)
    assert list(shared.runs) == list(alone.runs)
    assert shared.values == alone.values


def test_a_scan_of_a_file_in_bohr_is_in_bohr(tmp_path: Path) -> None:
    (tmp_path / "h2.xyz").write_text("2\n\nH 0 0 0\nH 0 0 1.4\n")
    study = dfmp2.scan(
        tmp_path / "h2.xyz", "sto-3g", ("bond", "1,2", [1.4, 1.5]), units="bohr", **SMALL
    )
    assert study.table["bond_1_2"].units == "bohr"
    assert study.runs["point-002"].molecule.coordinates[1, 2] == pytest.approx(1.5)


def test_a_failed_point_of_a_scan_is_a_warning() -> None:
    h2 = dfmp2.Molecule.from_string(MOLECULES["h2"])
    with recorded_warning(UserWarning) as caught:
        study = dfmp2.scan(
            h2, "sto-3g", ("bond", "1,2", [0.74, 40.0]), reference="rhf", stability="off", **SMALL
        )
    assert study.table["exit_code"].values == (0.0, 5.0) and caught[-1].filename == __file__


def test_a_batch_of_all_kinds_goes_on_and_isolates_failures(
    tmp_path: Path, result: dfmp2.MP2Result
) -> None:
    (tmp_path / "w.xyz").write_text(MOLECULES["h2o"])
    items: dict[Any, Any] = {
        "w": tmp_path / "w.xyz",
        0: dfmp2.Molecule.from_string("O 0 0 0; H 0 0 0.97"),  # numbers are names, too
    }
    items["helium"] = gto.M(atom="He", verbose=0)
    with recorded_warning(UserWarning):
        found = dfmp2.batch(items, "sto-3g", tmp_path / "out", **SMALL)
    assert (
        list(found) == ["w"]
        and set(found.failed) == {"0", "helium"}
        and "multiplicity=2" in found.failed["0"]
    )
    assert found["w"].total_energy == pytest.approx(result.total_energy, abs=1e-9)
    before = (tmp_path / "out" / "w.h5").stat()
    again = dfmp2.batch(
        [tmp_path / "out" / "molecules" / "w.xyz"], "sto-3g", tmp_path / "out", **SMALL
    )
    assert (tmp_path / "out" / "w.h5").stat().st_mtime_ns == before.st_mtime_ns and len(again) == 1
    with recorded_error(KeyError):
        found[0]
    manifest = (
        'basis = "sto-3g"\noutput = "out"\nprecision = "fp64"\n[[item]]\nmolecule = '
        '"out/molecules/w.xyz"\n'
    )
    (tmp_path / "b.toml").write_text(manifest)
    for source in (tmp_path / "b.toml", tmp_path / "out"):  # where the last call has left one
        assert len(dfmp2.batch(source, threads=1)) == 1
    assert (tmp_path / "out" / "w.h5").stat().st_mtime_ns == before.st_mtime_ns


def test_available_backends_can_be_asked_for() -> None:
    found = dfmp2.available_backends()
    assert "cpu" in found and "auto" not in found
    for name in ("cuda", "nki"):
        try:
            dfmp2.run(_water(), "sto-3g", backend=name, **SMALL)  # type: ignore[arg-type]
        except dfmp2.BackendUnavailable:
            assert name not in found
        else:
            assert name in found


def test_only_public_names_are_offered() -> None:
    assert all(getattr(dfmp2, name) is not None for name in dir(dfmp2))
    assert not [name for name in dir(dfmp2) if name.startswith("_") and name != "__version__"]
    assert {*dfmp2.__all__, "__version__"} == set(dir(dfmp2))
    kinds = {
        name
        for name, kind in vars(dfmp2.errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert kinds <= set(dir(dfmp2)) and {"Listener", "Study", "Unfinished"} <= set(dir(dfmp2))
    typed = ast.parse((ROOT / "dfmp2" / "__init__.py").read_text())
    imported = {
        alias.name
        for node in ast.walk(typed)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported - {"annotations", "import_module"} == set(dfmp2.__all__)
    assert (ROOT / "dfmp2" / "py.typed").exists() and '"py.typed"' in (
        ROOT / "pyproject.toml"
    ).read_text()
    with recorded_error(AttributeError) as missing:
        dfmp2.rum  # type: ignore[attr-defined] # noqa: B018
    assert missing.value.name == "rum"


def test_a_prepared_file_is_replaced_on_request_only(tmp_path: Path) -> None:
    path, helium = tmp_path / "x.h5", dfmp2.Molecule.from_string("He 0 0 0")
    dfmp2.prepare(helium, "6-31g", path, threads=1)
    before = path.read_bytes()
    with recorded_error(dfmp2.ResultExists):
        dfmp2.prepare(helium, "cc-pvdz", path, threads=1)
    assert path.read_bytes() == before
    assert dfmp2.prepare(helium, "cc-pvdz", path, threads=1, overwrite=True).sizes.nao == 5


# --- results --------------------------------------------------------------------------------------


def test_results_are_one_line_and_print_as_their_reports(
    result: dfmp2.MP2Result, tmp_path: Path
) -> None:
    gradient = of_water()
    study = of_heliums()
    outlook = dfmp2.plan(_water(), "sto-3g", threads=1)
    batch = dfmp2.batch({"w": _water()}, "sto-3g", tmp_path / "out", **SMALL)
    for one in (result, gradient, study, outlook, batch, result.molecule):
        assert "\n" not in repr(one) and len(repr(one)) < 200
        assert repr(one).startswith(type(one).__name__ + "(")
    scaled = dfmp2.derive(result, method="sos-mp2")
    assert f"E(SOS-MP2, total) = {scaled.total_energy:.10f} Eh" in repr(scaled)
    assert f"{result.total_energy:.10f} Eh" in repr(
        result
    ) and f"{gradient.result.gradient.norm:.8f}" in repr(gradient)
    assert str(result) == report(result).rstrip("\n") and str(study) == study_report(study).rstrip(
        "\n"
    )
    assert str(gradient) == str(gradient.result)
    assert "verdict: fits" in str(outlook) and outlook.to_dict()["fits"] is True
    tasks = ({}, {"properties": True}, {"gradient": True})
    planned = [dfmp2.plan(_water(), "sto-3g", threads=1, **more) for more in tasks]
    assert [one.plan.work.task for one in planned] == ["energy", "properties", "gradient"]
    assert f"{batch['w'].total_energy:.10f}" in str(batch)


def test_results_become_tables_of_pandas(result: dfmp2.MP2Result, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = result.to_dataframe()
    assert frame.shape[0] == 1 and frame.attrs["units"]["mp2_total_energy"] == "hartree"
    assert frame["mp2_total_energy"].iloc[0] == result.mp2_total_energy
    gradient = of_water()
    np.testing.assert_array_equal(
        gradient.to_dataframe()[["x", "y", "z"]].to_numpy(), gradient.gradient
    )
    assert gradient.to_dataframe()["symbol"].tolist() == ["O", "H", "H"]
    scan = dfmp2.scan(
        dfmp2.Molecule.from_string(MOLECULES["h2"]), "sto-3g", ("bond", "1,2", [0.7, 0.8]), **SMALL
    )
    assert scan.to_dataframe()["bond_1_2"].tolist() == [0.7, 0.8]
    assert scan.to_dataframe().attrs["units"]["bond_1_2"] == "angstrom"
    study = of_heliums()
    name = "cp_corrected_interaction_energy"
    assert study.to_dataframe().loc[name, "value"] == study.values[name].value
    batch = dfmp2.batch({"w": _water()}, "sto-3g", tmp_path / "out", **SMALL)
    rows = batch.to_dataframe()
    assert rows.loc["w", "mp2_total_energy"] == batch["w"].mp2_total_energy
    columns = ["molecule", "status", "exit_code", "error", "output", "seconds"]
    columns += ["method", "total_energy", "mp2_total_energy"]
    assert rows.columns.tolist() == columns and rows.loc["w", "status"] == "complete"
    assert len(pandas.concat([frame, frame])) == 2


def test_units_of_tables(result: dfmp2.MP2Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data given to pandas, even if it is not installed."""
    made = SimpleNamespace(attrs={})
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda data, index: made))
    units = result.to_dataframe().attrs["units"]
    assert (units["mp2_total_energy"], units["charge"]) == ("hartree", "elementary charge")
    assert not {"formula", "nao"} & set(units)


def test_without_pandas_it_is_named(
    result: dfmp2.MP2Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with recorded_error(InputError):
        result.to_dataframe()


def test_importing_loads_neither_pyscf_nor_numpy() -> None:
    code = (
        "import sys, dfmp2; dfmp2.Dfmp2Error, dfmp2.Listener, dfmp2.Options; "
        "print(sorted({'pyscf', 'numpy', 'torch', "
    )
    code += "'pandas'} & set(sys.modules)))\n"
    # In a process of its own, errors are in Python's words; this one has those of the command line.
    code += "try: dfmp2.Options(basis='sto-3g', scf_max_cycles=-1)\n"
    code += "except dfmp2.InputError as error: print(str(error)[:17])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\nscf_max_cycles=-1\n"
    )


def test_keywords_of_studies_do_not_hide_parameters() -> None:
    """A keyword of `StudyKeywords` that is also a parameter of a study would never reach its
    options."""
    for name in ("optimize", "frequencies", "irc", "interaction", "cbs", "scan"):
        own = set(inspect.signature(getattr(dfmp2, name)).parameters) - {"options"}
        assert not own & set(StudyKeywords.__annotations__), name
    assert set(MoleculeKeywords.__annotations__) <= set(StudyKeywords.__annotations__)


def test_a_batch_whose_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with recorded_error(dfmp2.ResourceError):
        dfmp2.batch({"w": _water()}, "sto-3g", tmp_path / "file" / "out")


def test_results_are_equal_by_their_content(water, radical):
    """Reading a file twice gives equal results; one bit of one pair makes a difference."""
    first, second = dfmp2.read(water.path), dfmp2.read(water.path)
    assert first is not second and first == second and hash(first) == hash(second)
    assert first != dfmp2.read(radical.path) and first != "a result"
    pairs = first.pairs.opposite_spin.copy()
    pairs[0, 1] = np.nextafter(pairs[0, 1], 1)
    other = replace(first, pairs=replace(first.pairs, opposite_spin=pairs))
    assert other != first and other == replace(other)


def test_read_many_reads_one_after_the_other(water, radical, tmp_path):
    for name, stored in (("b", water), ("a", radical)):
        (tmp_path / f"{name}.h5").write_bytes(Path(stored.path).read_bytes())
    whole = dict(dfmp2.read_many(tmp_path))
    assert list(whole) == ["a", "b"] and whole["b"] == dfmp2.read(water.path)
    names = ("total_energy", "gradient.total_gradient", "molecule.formula")
    part = dict(dfmp2.read_many(tmp_path, only=names))
    assert part["a"] == dict(zip(names, (whole["a"].total_energy, None, "H2N"), strict=True))
    (tmp_path / "c.h5").write_bytes(b"damaged")
    reading = dfmp2.read_many(tmp_path)
    assert [next(reading)[0], next(reading)[0]] == ["a", "b"]
    with recorded_error(dfmp2.ResultFileError):
        next(reading)
    for source, how in (
        (tmp_path / "none", {}),
        (tmp_path, {"only": "total_energy"}),
        (tmp_path, {"only": ("energie",)}),
    ):
        with recorded_error(dfmp2.InputError):
            dfmp2.read_many(source, **how)
    with recorded_error(dfmp2.InputError):
        next(dfmp2.read_many(tmp_path, only=("molecule.formulas",)))


def test_a_batch_has_the_tasks_of_a_manifest(folder):
    found = dfmp2.batch(
        [folder / "h2.xyz"], "sto-3g", folder / "o", task="gradient", keep="energies", threads=1
    )
    result = found["h2"]
    assert isinstance(found, dfmp2.BatchResult) and result.kept == "energies"
    alone = dfmp2.gradient(folder / "h2.xyz", "sto-3g", threads=1)
    assert isinstance(alone, dfmp2.GradientResult)
    np.testing.assert_allclose(result.gradient.total_gradient, alone.gradient, atol=1e-9)
    with recorded_error(dfmp2.InputError):
        dfmp2.batch([folder / "h2.xyz"], "sto-3g", folder / "p", task="hessian")
