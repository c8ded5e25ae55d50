"""The conventional SCF: the same bits in every run, whatever the threads do."""

from __future__ import annotations

import numpy as np
import pytest
from pyscf import gto, lib, scf

from dfmp2.io.xyz import parse_xyz
from dfmp2.options import Options
from dfmp2.pipeline import run
from dfmp2.progress import Listener
from dfmp2.reference.conventional import reproducible
from tests.conftest import MOLECULES
from tests.test_batch import chain

WATERS = "; ".join(line for line in chain(2).splitlines()[2:])
THREADS = 4  # more than cores, so that they finish in any order


@pytest.mark.parametrize("kind", ["RHF", "UHF"])
def test_matrices_have_the_same_bits_however_threads_are_scheduled(kind: str) -> None:
    mol = gto.M(atom=WATERS, basis="cc-pvdz", verbose=0)
    theirs, ours = (getattr(scf, kind)(mol) for _ in range(2))
    ours = reproducible(ours)
    density = ours.get_init_guess()
    with lib.with_omp_threads(THREADS):
        found = [ours.get_jk(mol, density) for _ in range(8)]
        assert lib.num_threads() == THREADS  # as it was
        expected = theirs.get_jk(mol, density)
    assert len({tuple(matrix.tobytes() for matrix in pair) for pair in found}) == 1
    np.testing.assert_allclose(found[0], expected, atol=1e-11)


def test_energies_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    molecule = parse_xyz(MOLECULES["nh2"], file="nh2").molecule
    monkeypatch.setattr(Listener, "warning", lambda self, text: None)
    options = Options(basis="cc-pvdz", scf="conventional", threads=2, precision="fp64")
    results = [run(molecule, options) for _ in range(3)]
    assert len({result.mp2_total_energy for result in results}) == 1
    assert len({result.reference.mo_coeff.tobytes() for result in results}) == 1
