"""Is it right, is it fit, how fast: energies of other programs, a second opinion, the doctor, the
bench."""
