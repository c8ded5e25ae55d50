"""The Python interface: typed keywords, molecules of all kinds, messages in Python terms, printed
results."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import dfmp2
from dfmp2.interop.studies import StudyKeywords
from dfmp2.options import Keywords, MoleculeKeywords, Options
from dfmp2.options.methods import method_names
from tests.conftest import ROOT

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
        if field.name not in ("backend", "frozen_core", "method"):
            assert literals == field.metadata["choices"]
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


def test_a_warning_points_at_the_line_that_called(tmp_path: Path) -> None:
    """Through a run, with a checkpoint, and through ASE; a listener also gets it in Python
    terms."""
    # Angstrom taken for bohr
    far = dfmp2.Molecule(("O", "H"), np.array([[0, 0, 0], [0, 0, 0.96]]), charge=-1)

    def here(call: Callable[[], Any]) -> int:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        (found,) = [one for one in caught if "covalent radii" in str(one.message)]
        assert found.filename == __file__ and 'units="bohr"' in str(found.message)
        return found.lineno

    allowed: dict[str, Any] = {"threads": 1, "precision": "fp64", "allow_small_gap": True}
    assert here(lambda: dfmp2.run(far, "sto-3g", **allowed)) == inspect.currentframe().f_lineno  # type: ignore[union-attr]
    here(lambda: dfmp2.run(far, "sto-3g", checkpoint=tmp_path / "x.h5", **allowed))
    ase = pytest.importorskip("ase")
    from dfmp2.interop.ase import DFMP2

    atoms = ase.Atoms("OH", [[0, 0, 0], [0, 0, 0.51]])
    atoms.calc = DFMP2("sto-3g", charge=-1, multiplicity=1, **allowed)
    here(atoms.get_potential_energy)


# --- modules and keywords --------------------------------------------------------------------------


def test_importing_loads_neither_pyscf_nor_numpy() -> None:
    code = (
        "import sys, dfmp2; dfmp2.Dfmp2Error, dfmp2.Listener, dfmp2.Options; "
        "print(sorted({'pyscf', 'numpy', 'torch', 'pandas'} & set(sys.modules)))\n"
        # In a process of its own, errors are in Python's words; this one has those of commands.
        "try: dfmp2.Options(basis='sto-3g', scf_max_cycles=-1)\n"
        "except dfmp2.InputError as error: print(str(error)[:17])"
    )
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
