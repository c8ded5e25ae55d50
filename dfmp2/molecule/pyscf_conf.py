"""Configuration dfmp2 gives PySCF at import (see pyscf_shield.py); PySCF executes the first such
file it finds.

Geometry, basis and potential parsers then refuse expressions instead of evaluating them as Python.
"""

DISABLE_EVAL = True
