"""dfmp2 inside other programs: QCSchema, QCEngine, ASE, PySCF; each module imports its program, and no other does."""
