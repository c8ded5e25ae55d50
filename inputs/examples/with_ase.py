"""The ASE calculator: energy of ammonia in eV. Needs ASE: pip install 'dfmp2[ase]'."""

from pathlib import Path

try:
    import ase.io
    from ase.units import Hartree

    from dfmp2.interop.ase import DFMP2
except ImportError as absent:
    print(f"skipped: {absent}")
    raise SystemExit(0) from None

INPUTS = Path(__file__).resolve().parent.parent

atoms = ase.io.read(INPUTS / "nh3.xyz", format="xyz")
atoms.calc = DFMP2(basis="cc-pvdz")
energy = atoms.get_potential_energy()
print(f"E(MP2) = {energy:.6f} eV = {energy / Hartree:.8f} Eh")
