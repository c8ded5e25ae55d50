"""The error tree: sorted by what the user does next, each branch knows its exit code.

    Dfmp2Error
      InputError            3   change what was named: file, option, basis, charge
        ForeignCheckpoint       what a stopped run has saved belongs to another calculation
      ResultFileError       3   the result file is foreign, corrupt or already there
        ResultExists            also a FileExistsError
      ConvergenceError      4   the SCF did not converge
      NumericalError        5   a numerical guard tripped; the number would not be trustworthy
      BackendError          6   choose another backend or precision
        BackendUnavailable
        UnsupportedByBackend
        KernelError             a device kernel breaks a rule of its language or its chip
      ResourceError         7   memory, disk or permissions do not suffice
        DiskFull                a disk is full, over quota or read-only: whoever writes there next fails too
        DeviceFault             the hardware reported a fault or hung: nothing it answered can be trusted
      ComparisonFailed      8   two energies differ by more than allowed
      SomeFailed            9   some of several calculations failed, the others are done
      Interrupted          75   SIGTERM (Ctrl-C is Python's KeyboardInterrupt: 130)

Exit code 0 is success, 1 a fault in dfmp2 itself (KernelFailed: a kernel failed while it ran), 2 a command line
that cannot be parsed.
A message says what was given, what was expected and what to do about it.
"""

from __future__ import annotations


class Dfmp2Error(Exception):
    """Anything dfmp2 refuses or cannot do, with a message for the user."""

    exit_code = 1


class InputError(Dfmp2Error):
    """Something the user named is wrong; `file` and `line` are put in front of the message.

    Parameters
    ----------
    message : what was given, what was expected, what to do
    file : name of the offending file, if there is one
    line : 1-based line number in `file`
    """

    exit_code = 3

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        if file is None:
            place = ""
        elif line is None:
            place = f"{file}: "
        else:
            place = f"{file}, line {line}: "
        super().__init__(place + message)
        self.file = file
        self.line = line


class ForeignCheckpoint(InputError):
    """What a stopped run has saved belongs to another calculation."""


class ResultFileError(Dfmp2Error):
    """A result file is foreign, corrupt, of an unknown version, or would be overwritten."""

    exit_code = 3


class ResultExists(ResultFileError, FileExistsError):
    """A file is there and may not be replaced; Python's `FileExistsError` as well."""


class ConvergenceError(Dfmp2Error):
    """The SCF did not converge; there is no MP2 energy to report."""

    exit_code = 4


class NumericalError(Dfmp2Error):
    """A numerical guard tripped: gap, denominators, NaN, certificate above tolerance."""

    exit_code = 5


class BackendError(Dfmp2Error):
    """The chosen backend cannot do the job."""

    exit_code = 6


class BackendUnavailable(BackendError):
    """The backend is not installed, not built yet or has no device."""


class UnsupportedByBackend(BackendError):
    """The backend exists but cannot do what was asked (precision, size)."""


class KernelError(BackendError):
    """A device kernel breaks a rule of its language or its chip."""


class KernelFailed(Dfmp2Error):
    """A kernel that had been accepted failed while it ran; there is no result."""


class ResourceError(Dfmp2Error):
    """Memory, disk space or permissions do not suffice."""

    exit_code = 7


class DiskFull(ResourceError):
    """A disk is full, over quota or read-only while it is written to: whoever writes there next fails too."""


class DeviceFault(ResourceError):
    """The accelerator reported a hardware error or did not answer in time; the run is discarded."""


class ComparisonFailed(Dfmp2Error):
    """Two energies differ by more than the tolerance."""

    exit_code = 8


class SomeFailed(Dfmp2Error):
    """Some of several calculations failed; the others are done and stored."""

    exit_code = 9


class Interrupted(Dfmp2Error):
    """The process was asked to terminate (SIGTERM)."""

    exit_code = 75
