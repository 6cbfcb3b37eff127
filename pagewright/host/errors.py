"""What goes wrong, said once and plainly; a class for each stage, so that callers can tell."""

from __future__ import annotations


class PagewrightError(Exception):
    """An error the user can act on; the CLI prints it without a traceback.

    Args:
        what: what happened, one line.
        todo: what to do about it, one line, or empty.
        details: output that helps (a console's last lines, a tool's messages).
    """

    def __init__(self, what: str, todo: str = "", details: str = "") -> None:
        """Make an error of its three parts."""
        super().__init__(what)
        self.what = what
        self.todo = todo
        self.details = details

    def __str__(self) -> str:
        """Return all three parts, a line or block each."""
        return "\n".join(part for part in (self.what, self.details, self.todo) if part)


class HostError(PagewrightError):
    """This computer lacks something: a package, root, a network, space on its disk."""


class DiskFullError(HostError):
    """The disk is full, or will be before what was asked for is done."""


class NetworkError(HostError):
    """A mirror or a registry could not be reached."""


class ProgramError(PagewrightError):
    """A program that was started failed, or did not end in time."""


class VersionGoneError(ProgramError):
    """Debian does not have a version of a package, or not any more."""


class SourceError(PagewrightError):
    """The kernel source could not be had, or what is to be added to it does not fit."""


class BuildError(PagewrightError):
    """A kernel, a module or a guest program could not be configured or compiled."""


class MachineError(PagewrightError):
    """A machine did not do what was asked of it."""


class GuestDiedError(MachineError):
    """The guest's kernel stopped (a panic, an oops), or its emulator ended."""


class GuestHungError(MachineError):
    """The guest gave no answer in time."""


class CommandFailedError(MachineError):
    """A command in the guest ended with a status other than 0."""


class MeasureError(PagewrightError):
    """An experiment could not be run, or did not print what its figures are made of."""


class NothingToMeasureError(MeasureError):
    """Nothing of an experiment can be run where it was to be run."""
