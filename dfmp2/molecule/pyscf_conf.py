"""Configuration that dfmp2 gives PySCF at import (see pyscf_shield.py); PySCF executes the first
such file it finds.

With it, the parsers of geometries, bases and potentials reject expressions instead of evaluating
them as Python.
"""

DISABLE_EVAL = True
