"""Validation against other programs, recomputation of results, checks of the installation, and
benchmarks."""
