"""All checks in one go, in the order in which a run would stumble."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dfmp2.doctor import folders, machine, neuron, packages
from dfmp2.doctor.finding import FAIL, Finding, Surroundings


def examine(s: Surroundings) -> list[Finding]:
    """Every finding about these surroundings.

    The default run comes last in the table and first in time: it loads the libraries that the checks of BLAS and
    PySCF look at, while another process imports PyTorch.
    """
    probe = packages.start_torch_probe(s)
    libraries = packages.check_libraries(s)
    output = folders.check_output_folder(s)
    written = folders.disk_time(s.folder)
    trial = _trial(s, libraries, output)
    usable = trial[0].exit_code != packages.FAULT
    return [
        packages.check_python(),
        packages.check_command(s),
        libraries,
        output,
        *([packages.check_pyscf()] if usable else []),
        folders.check_pyscf_configuration(s),
        packages.check_module_path(s),
        packages.check_exchange(s),
        packages.check_torch(s, probe),
        packages.check_psi4(s),
        *neuron.check_neuron(s),
        machine.check_threads(s),
        *([machine.check_blas(), folders.check_text(s)] if usable else []),
        machine.check_memory(s),
        folders.check_scratch(s),
        folders.check_home(s),
        machine.check_clock(written, Path(__file__).stat().st_mtime),
        *trial,
    ]


def exit_code(findings: Sequence[Finding]) -> int:
    """What the default run would exit with: 0, or the code of the first failure."""
    return next((finding.exit_code for finding in findings if finding.status == FAIL), 0)


def _trial(s: Surroundings, libraries: Finding, output: Finding) -> list[Finding]:
    name = "default run"
    if libraries.status == FAIL:
        return [Finding(name, FAIL, "not tried: libraries are missing", libraries.fix, libraries.exit_code)]
    try:
        from dfmp2.doctor import trial

        run, result = trial.check_default_run()
    except ImportError as error:  # installed and broken
        return [Finding(name, FAIL, f"a library does not import: {error}", packages.REINSTALL, packages.FAULT)]
    return [run] if output.status == FAIL else [run, trial.check_result_file(s, result)]
