"""Why a machine does not answer any more."""

from __future__ import annotations

import subprocess

from labgrid.driver.exception import ExecutionError
from labgrid.util.qmp import QMPError
from pexpect import TIMEOUT, ExceptionPexpect  # type: ignore[import-untyped]

from pagewright.host.errors import GuestDiedError, GuestHungError, MachineError
from pagewright.host.run import tail
from pagewright.machine import klog
from pagewright.machine.emulator import EmulatorDriver

# How much of the console an error shows.
CONSOLE_TAIL = 40

# What labgrid's drivers raise when the other side stops answering.
SILENCE = (ExceptionPexpect, ExecutionError, QMPError, OSError, subprocess.TimeoutExpired)


def diagnose(
    emulator: EmulatorDriver | None,
    console: str,
    error: Exception,
    timeout: float,
    when: str,
) -> MachineError:
    """Say why a machine does not answer: it died, QEMU ended, or it hangs.

    Args:
        emulator: the driver of its QEMU, if it has one.
        console: what its kernel has printed.
        error: what labgrid raised.
        timeout: how many seconds were waited.
        when: what it was doing, such as "while booting".
    """
    details = tail(console, CONSOLE_TAIL)
    if cause := klog.cause_of_death(console):
        return GuestDiedError(f"the guest kernel died {when}: {cause}", details=details)
    silent = isinstance(error, TIMEOUT | subprocess.TimeoutExpired)
    if emulator is not None:
        status = emulator.exit_status(timeout=0 if silent else 5)
        if status is not None:
            details = "\n".join(text for text in (emulator.messages(), details) if text)
            return GuestDiedError(f"QEMU exited with status {status} {when}", details=details)
    if silent:
        return GuestHungError(f"no answer within {timeout:g} s {when}", details=details)
    return MachineError(f"the connection failed {when}: {error}", details=details)
