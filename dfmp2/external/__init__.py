"""Other quantum chemistry programs, run as separate processes: the second opinion of `compare --with`."""
