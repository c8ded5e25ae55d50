"""The error tree, sorted by what the user does next; each branch has its own exit code.

    Dfmp2Error
      InputError            3   change what was named: file, option, basis, charge
        ForeignCheckpoint       the saved state of an interrupted run belongs to another calculation
      ResultFileError       3   the result file is foreign, corrupt or exists already
        ResultExists            also a FileExistsError
      ConvergenceError      4   the SCF did not converge
      NumericalError        5   a numerical guard tripped; the number would not be trustworthy
      BackendError          6   choose another backend or precision
        BackendUnavailable
        UnsupportedByBackend
        KernelError             a device kernel breaks a rule of its language or its chip
      ResourceError         7   memory, disk or permissions do not suffice
        DiskFull                a disk is full, over quota or read-only, so the next write would fail too
        DeviceFault             the hardware reported a fault or hung: none of its results can be trusted
      ComparisonFailed      8   two energies differ by more than allowed
      SomeFailed            9   some of several calculations failed, the others are complete
      Interrupted          75   SIGTERM (Ctrl-C is Python's KeyboardInterrupt: 130)

Exit code 0 is success, 1 a fault in dfmp2 itself (KernelFailed: a kernel failed while it ran), 2 a
command line that cannot be parsed.
A message says what was given, what was expected and what to do about it. Options in it are values,
which each front end writes in its own syntax (`dfmp2.errors.messages`): the text of an error is in
Python's, in the command line's within a command, and in that of a document that it is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from dfmp2.errors.messages import (
    Command,
    Message,
    Option,
    Part,
    Words,
    front_end,
    in_words,
)

__all__ = [
    "EXIT_CODES",
    "STOPPED",
    "BackendError",
    "BackendUnavailable",
    "Command",
    "ComparisonFailed",
    "ConvergenceError",
    "DeviceFault",
    "Dfmp2Error",
    "DiskFull",
    "ForeignCheckpoint",
    "InputError",
    "Interrupted",
    "KernelError",
    "KernelFailed",
    "Message",
    "NumericalError",
    "Option",
    "ResourceError",
    "ResultExists",
    "ResultFileError",
    "SomeFailed",
    "UnsupportedByBackend",
    "speaking",
]


class Dfmp2Error(Exception):
    """Anything that dfmp2 rejects or cannot do, with a message for the user.

    Parameters
    ----------
    parts : what was given, what was expected, what to do: texts, with options and commands between
        them

    Attributes
    ----------
    message : the parts; as a text, in the words of the command line. `str` of the error is in those
        of the front end.
    goes_on : whether repeating the command can help
    """

    exit_code = 1
    message: Message
    goes_on: bool = True

    def __init__(self, *parts: Part) -> None:
        self.message = Message(*parts)
        super().__init__(str(self.message))

    def __str__(self) -> str:
        return in_words(self.message, front_end())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    @property
    def option(self) -> Option | None:
        """The option that is wrong: the first one named in the message."""
        named = self.message.options
        return named[0] if named else None

    def prefixed(self, who: str, behind: Part = "") -> Self:
        """The same error about one of several calculations.

        Parameters
        ----------
        who : the calculation
        behind : text to append to the message
        """
        # Not by `copy`: Dask installs a way of pickling exceptions, and copies then share attributes.
        again = type(self).__new__(type(self))
        again.__dict__.update(self.__dict__)
        again._say(Message(f"{who}: ", self.message, behind))
        return again

    def speak(self, words: Words) -> None:
        """Word the message for good, whatever the front end of the process."""
        self._say(Message(in_words(self.message, words)))

    def _say(self, message: Message) -> None:
        self.message = message
        self.args = (str(message),)


@contextmanager
def speaking(words: Words) -> Iterator[None]:
    """Word the errors of a block, or of a decorated function, for a document or a front end."""
    try:
        yield
    except Dfmp2Error as error:
        error.speak(words)
        raise


class InputError(Dfmp2Error):
    """Something the user named is wrong; `file` and `line` are prepended to the message.

    Parameters
    ----------
    parts : what was given, what was expected, what to do
    file : name of the offending file, if there is one
    line : 1-based line number in `file`

    Attributes
    ----------
    reason : the message without file and line
    """

    exit_code = 3

    def __init__(self, *parts: Part, file: str | None = None, line: int | None = None) -> None:
        if file is None:
            place = ""
        elif line is None:
            place = f"{file}: "
        else:
            place = f"{file}, line {line}: "
        self.reason = Message(*parts)
        super().__init__(place, self.reason)
        self.file = file
        self.line = line

    def placed(self, *, file: str | None = None, line: int | None = None) -> InputError:
        """The same error with the file it concerns, or with a line of a file named later."""
        return InputError(self.message, file=file, line=line)


class ForeignCheckpoint(InputError):
    """The saved state of an interrupted run belongs to another calculation."""


class ResultFileError(Dfmp2Error):
    """A result file is foreign, corrupt, of an unknown version, or would be overwritten."""

    exit_code = 3


class ResultExists(ResultFileError, FileExistsError):
    """A file exists and may not be replaced; also a `FileExistsError`."""


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
    """The backend is not installed, not built or has no device."""


class UnsupportedByBackend(BackendError):
    """The backend exists but does not support what was requested (precision, size)."""


class KernelError(BackendError):
    """A device kernel breaks a rule of its language or its chip."""


class KernelFailed(Dfmp2Error):
    """A kernel that had been accepted failed while it ran; there is no result."""


class ResourceError(Dfmp2Error):
    """Memory, disk space or permissions do not suffice."""

    exit_code = 7


class DiskFull(ResourceError):
    """A disk is full, over quota or read-only during writing: the next write to it would fail
    too."""


class DeviceFault(ResourceError):
    """The accelerator reported a hardware error or did not answer in time; the run is discarded."""


class ComparisonFailed(Dfmp2Error):
    """Two energies differ by more than the tolerance."""

    exit_code = 8


class SomeFailed(Dfmp2Error):
    """Some of several calculations failed; the others are complete and stored."""

    exit_code = 9


class Interrupted(Dfmp2Error):
    """The process was asked to terminate (SIGTERM)."""

    exit_code = 75


STOPPED = 130  # by Ctrl-C, or by a second signal: not an error of dfmp2
EXIT_CODES = {  # of the command line, and their meanings
    1: "fault in dfmp2",
    2: "command line",
    3: "input or result file",
    4: "SCF did not converge",
    5: "numerical guard",
    6: "backend",
    7: "memory, disk or permissions",
    8: "comparison failed",
    9: "some of several calculations failed",
    75: "interrupted, can be resumed",
    STOPPED: "stopped by Ctrl-C",
}
