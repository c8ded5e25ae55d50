"""The only room that imports PySCF: molecules, basis data, SCF, integrals, reference energies."""
