"""How a machine comes to run: booted in QEMU, or connected to where it runs already.

`boot` starts a QEMU (see qemu.yaml) or connects to a place of a lab that already runs the
kernel and the guest; both are driven through labgrid, and a caller need not know which it got.
`console` gives the user the shell of a QEMU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from labgrid import Environment
from labgrid.binding import BindingError
from labgrid.exceptions import InvalidConfigError, NoSupplierFoundError

from pagewright.host.errors import GuestDiedError, MachineError, PagewrightError
from pagewright.host.ledger import timed
from pagewright.host.progress import say
from pagewright.host.run import foreground, tail
from pagewright.host.scratch import temporary
from pagewright.machine import evidence, klog, strict
from pagewright.machine.death import CONSOLE_TAIL, SILENCE, diagnose
from pagewright.machine.emulator import EmulatorDriver
from pagewright.machine.machine import BOOT_SECONDS, Machine
from pagewright.machine.options import MachineOptions
from pagewright.machine.qemu import describe
from pagewright.machine.strict import BlindError, Strict, Violation

# What labgrid raises for an environment file that is wrong. It does not check types: what should
# be a mapping and is none, such as a driver with nothing after its colon, ends in the last two.
_WRONG_FILE = (
    InvalidConfigError,
    NoSupplierFoundError,
    BindingError,
    AttributeError,
    TypeError,
)

# With 64 CPUs a boot took more than BOOT_SECONDS on a host with two that did much else. With 160
# that take turns, as in benches, it is to have half an hour.
_SECONDS_FOR_EACH_CPU = 10


@contextmanager
def boot(
    options: MachineOptions,
    env: Path | None = None,
    timeout: int | None = None,
    last_violations: list[Violation] | None = None,
) -> Iterator[Machine]:
    """Boot a machine, or connect to one, and end it with the context.

    Args:
        options: the machine; not applied if `env` is given.
        env: a labgrid environment file whose target "main" has a driver with
            the CommandProtocol and already runs our kernel and guest.
        timeout: seconds until its shell must have answered. By default these are more, the more
            CPUs the machine has, as the emulator runs them on few.
        last_violations: takes what a strict machine had found when an error ended the context.
            The machine may not be able to say it any more, and its files are gone afterwards.

    Raises:
        MachineError: it did not come up.
    """
    with ExitStack() as stack:
        if env is not None:
            yield _connect(env, stack, timeout or BOOT_SECONDS)
            return
        timeout = timeout or BOOT_SECONDS + _SECONDS_FOR_EACH_CPU * options.smp
        directory = stack.enter_context(temporary("machine"))
        logs = evidence.claim(directory)
        environment = describe(options, directory, logs, timeout)
        try:
            with timed("boot"):
                started = _start(environment, logs, stack, timeout)
                started.strict = options.strict
            yield started
        except PagewrightError:
            file = logs / evidence.VIOLATIONS
            if options.strict and last_violations is not None:
                # It may have died before there was anything to see, and why it died is what counts.
                with suppress(PagewrightError):
                    last_violations += _seen(file, options.strict)
            raise


def _seen(file: Path, how: Strict) -> list[Violation]:
    """Return the violations that a strict machine has seen, although it may not have seen all."""
    try:
        return strict.read(file, how)
    except BlindError as error:
        say(error.what)
        return error.violations


def _start(environment: Path, logs: Path, stack: ExitStack, timeout: float) -> Machine:
    """Start the QEMU that an environment file describes."""
    log = logs / evidence.CONSOLE
    lab = Environment(str(environment))
    target = lab.get_target("main")
    stack.callback(lab.cleanup)
    emulator = target.get_driver(EmulatorDriver)
    stack.callback(emulator.off)
    try:
        emulator.on()
        shell = target.get_driver("ShellDriver")
    except SILENCE as error:
        console = log.read_text(errors="replace") if log.is_file() else ""
        raise diagnose(emulator, console, error, timeout, "while booting") from error
    machine = Machine(shell, emulator, environment.parent, logs)
    stack.callback(machine.close)
    return machine


def _connect(env: Path, stack: ExitStack, timeout: float) -> Machine:
    """Connect to the place that a user's environment file describes."""
    # They take long to import, and nothing else needs them.
    from labgrid.remote.client import UserError
    from labgrid.resource.remote import RemotePlaceManager

    try:
        lab = Environment(str(env))
        stack.callback(lab.cleanup)
        target = lab.get_target("main")
    except UserError as error:
        places = ", ".join(RemotePlaceManager.get().session.places) or "none"
        raise MachineError(
            f"{env}: the coordinator does not have its place: {error}", f"it has these: {places}"
        ) from error
    except _WRONG_FILE as error:
        raise _wrong(env, error) from error
    if target is None:
        raise MachineError(
            f"{env} has no target named main",
            f"its targets are: {', '.join(lab.config.get_targets())}",
        )
    logs = evidence.claim(stack.enter_context(temporary("place")))
    stack.enter_context(evidence.console_written(target, logs / evidence.CONSOLE))
    try:
        shell = target.get_driver("CommandProtocol")
    except NoSupplierFoundError as error:
        raise _wrong(env, error) from error
    except SILENCE as error:
        raise diagnose(
            None, "", error, timeout, f"while connecting to the place in {env}"
        ) from error
    machine = Machine(shell, logs=logs)
    machine.build = lab.config.get_option("build", "")
    return machine


def _wrong(env: Path, error: Exception) -> MachineError:
    """Say what labgrid found wrong in a user's environment file."""
    return MachineError(
        f"{env} describes no place that commands can be run on",
        "docs/lab.md says what such a file has",
        f"labgrid says: {error}",
    )


def console(options: MachineOptions, violations: list[Violation] | None = None) -> int:
    """Boot a machine and give the user its shell; Ctrl-A X ends it.

    What the kernel prints is not on the user's terminal, where it would get between what is
    typed there, and so is looked at when the machine has ended.

    Args:
        options: the machine.
        violations: takes what a strict machine has found.

    Returns:
        QEMU's exit status.

    Raises:
        GuestDiedError: the kernel stopped.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(temporary("machine"))
        lab = Environment(str(describe(options, directory, directory, BOOT_SECONDS)))
        stack.callback(lab.cleanup)
        emulator = lab.get_target("main").get_driver(EmulatorDriver, activate=False)
        terminal = "stdio,id=serialsocket,mux=on,signal=off"
        status = foreground(
            [*emulator.get_qemu_base_args(), "-chardev", terminal, "-mon", "serialsocket"]
        )
        file = directory / evidence.CONSOLE
        log = file.read_text(errors="replace").replace("\r\n", "\n") if file.is_file() else ""
        if options.strict and violations is not None:
            violations += _seen(directory / evidence.VIOLATIONS, options.strict)
        if cause := klog.cause_of_death(log):
            details = tail(log, CONSOLE_TAIL)
            raise GuestDiedError(f"the guest kernel died: {cause}", details=details)
        return status
