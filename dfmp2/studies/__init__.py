"""Studies made of several calculations: interaction energies, basis-set limits, scans, and
others."""
