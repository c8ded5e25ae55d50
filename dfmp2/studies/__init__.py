"""Questions that take several calculations: interaction energies, basis set limits, scans."""
