"""xyz files: geometry in angstrom, and in the comment line what was computed there, as key=value.

Every energy key names its unit, because programs that read extended xyz take a bare `energy` for electronvolts.
"""

from __future__ import annotations

from dfmp2.io.text import printable
from dfmp2.io.xyz import write_xyz
from dfmp2.result import MP2Result


def xyz(result: MP2Result) -> bytes:
    """The geometry, with charge, multiplicity, method and energies in hartree in the comment line."""
    count, comment, *atoms = write_xyz(result.molecule).splitlines()
    energies = {
        "scf_total_energy": result.scf_total_energy,
        "mp2_correlation_energy": result.mp2_correlation_energy,
        "mp2_total_energy": result.mp2_total_energy,
    }
    keys = " ".join(f"{name}_hartree={value:.12f}" for name, value in energies.items())
    basis = printable(result.orbital_basis.name).replace('"', "'")
    relativity = "X2C-" if result.options.relativity == "x2c" else ""
    charges = result.molecule.point_charges
    field = "" if charges is None else f" point_charges={len(charges)}"
    line = f'{comment} method="{relativity}DF-MP2/{basis}"{field} {keys}'
    return ("\n".join([count, line, *atoms]) + "\n").encode("ascii", "backslashreplace")
