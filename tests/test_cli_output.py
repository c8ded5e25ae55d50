"""Output of a run: the report, the JSON object, the HDF5 layout, PySCF's checkpoint, safe
writing."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dfmp2.output import hdf5
from tests.conftest import Runner, on_a_terminal, run_command, succeed
from tests.recorded import recorded_texts

# --- screen ---------------------------------------------------------------------------------------


def test_terminal_gets_a_bar_and_colour(folder: Path) -> None:
    run = ("run", "h2-far.xyz", "--basis", "sto-3g", "--overwrite")
    coloured = on_a_terminal("stderr", *run, cwd=folder)
    for what in ("SCF integrals", "integrals", "pairs"):
        assert re.search(rf"\r  {what} \[#{{30}}\] (\d+)/\1 *[\r\n]", coloured), coloured
    assert coloured.endswith("\r")  # the line that is rewritten is gone
    assert "\x1b[33mwarning: " in coloured


# --- closing lines of studies ---------------------------------------------------------------------

STUDIES = (
    "optimize h2.xyz --basis sto-3g",
    "irc h2.xyz --basis sto-3g",
    "frequencies h2.xyz --basis sto-3g",
    "scan h2.xyz --basis sto-3g --bond 1,2 0.7:0.8:5",
    "reaction --reactants h2.xyz --products h2-far.xyz --basis sto-3g",
    "interaction h2.xyz --basis sto-3g --fragments 1,2",
    "cbs h2.xyz --basis cc-pv[dt]z",
)
PLAIN = {
    "optimized_total_energy": -1.25,
    "barrier_forward_kj_per_mol": 21.5,
    "barrier_backward_kj_per_mol": 43.25,
    "reaction_energy_kj_per_mol": -21.75,
    "interaction_energy": -0.001,
    "cp_corrected_interaction_energy": -0.002,
    "cp_corrected_interaction_energy_kj_per_mol": -5.25,
    "cbs_total_energy": -1.5,
    "cbs_correlation_energy": -0.05,
    "lowest_first": 0.75,
    "lowest_second": 104.5,
}
MORE = {
    "minimum_parabola": 0.74,
    "minimum_quartic": 0.735,
    "reaction_enthalpy_kj_per_mol": -22.5,
    "reaction_gibbs_energy_kj_per_mol": -23.5,
    "composite_total_energy": -1.75,
    "delta_correction": -0.01,
}


def made_up(values: dict[str, float], curvatures: list[float]) -> Any:
    """A study with these numbers, two points and three vibrations, of which one is imaginary."""
    settings = {"equation": "h2 -> h2-far", "steps": 3, "stationary_point": "minimum", "failed": 0}
    settings |= {"backward_minimum": "HCN", "forward_minimum": "HNC", "imaginary_modes": 0}
    return SimpleNamespace(
        values={name: SimpleNamespace(value=x, units="unit") for name, x in values.items()},
        arrays={"extrema_curvature": SimpleNamespace(value=np.array(curvatures))},
        table={"wavenumber": SimpleNamespace(values=(-512.5, 1604.25, 3801.75))},
        settings=settings,
        path=("a", "b"),
        complete=True,
    )


def test_closing_lines_of_studies_have_their_numbers(
    call: Runner, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of all the numbers of a study, and of a simpler one."""
    studies = [made_up(PLAIN | MORE, [1.0, -1.0, 2.0]), made_up(PLAIN, [1.0])]
    lines: list[str] = []

    def carried_out(_target: Path, _compute: Any, ending: Any, *_: Any, **__: Any) -> Any:
        lines.extend(ending(study) for study in studies)
        return studies[0]

    for module in ("geometry", "reaction", "thermochemistry"):
        monkeypatch.setattr(f"dfmp2.cli.{module}.run_study", carried_out)
    for typed in STUDIES:
        succeed(call(*typed.split()))
    recorded_texts(lines)


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_runs_at_once_leave_one_whole_file(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    arguments = ("run", "h2.xyz", "--basis", "sto-3g", "--quiet")
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: run_command(*arguments, cwd=folder), range(2)))
    assert sorted(one.code for one in done) == [0, 3]
    hdf5.read(folder / "h2.dfmp2.h5")
    assert not list(folder.glob(".*"))
