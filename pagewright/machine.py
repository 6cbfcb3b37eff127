"""A running machine: boot it, run commands in it, hear when it dies.

`boot` starts a QEMU (see qemu.yaml) or connects to a place of a lab that
already runs the kernel and the guest; both are driven through labgrid, and a
caller need not know which it got.

A command is sent to the guest's shell in base64, and its output comes back as
gzip in base64. So any bytes survive whatever lies between (a terminal, SSH, a
serial line), and the checksum in the gzip notices when the kernel wrote
something into the middle.

labgrid keeps one stack of steps for the whole process: use machines from one
thread at a time.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labgrid import Environment
from labgrid.driver.exception import ExecutionError
from labgrid.exceptions import NoDriverFoundError
from labgrid.util.qmp import QMPError
from pexpect import TIMEOUT, ExceptionPexpect  # type: ignore[import-untyped]

from pagewright import klog
from pagewright.emulator import EmulatorDriver
from pagewright.errors import PagewrightError
from pagewright.place import CONSOLE_LOG, MachineOptions, describe
from pagewright.run import tail

__all__ = ["Machine", "MachineOptions", "Result", "boot"]

# A debug kernel that counts instructions takes minutes to boot. Machines that
# die while booting are noticed at once, so only a hang costs this long.
BOOT_SECONDS = 300

_CONSOLE_TAIL = 40

# A terminal takes lines of at most 4095 bytes; a longer command goes in pieces.
_PIECE = 3000
# The kernel takes single arguments of at most 128 KiB (base64 adds a third).
_COMMAND_BYTES = 96 * 1024
# The output comes back in pieces, compressed bytes each.
_CHUNK = 256 * 1024
_FETCH_SECONDS = 60
_FETCH_TRIES = 3

_DIRECTORY = "/run/command"
_RUN = (
    f"exec 2>/dev/null; cd {_DIRECTORY}; "
    '(cd; exec sh -c "$({source})") >out 2>&1 </dev/null; '
    "{{ echo $?; cat out; }} | gzip -1 >out.gz; rm -f out; {fetch}"
)
_FETCH = (
    f"exec 2>/dev/null; cd {_DIRECTORY}; wc -c <out.gz; "
    f"dd if=out.gz bs={_CHUNK} skip={{chunk}} count=1 | base64"
)

# What labgrid's drivers raise when the other side stops answering.
_SILENCE = (ExceptionPexpect, ExecutionError, QMPError, OSError, subprocess.TimeoutExpired)


@dataclass(frozen=True)
class Result:
    """How a command ended.

    Attributes:
        output: all it wrote to standard output and standard error, as it came;
            bytes that are not UTF-8 are replaced.
        status: its exit status; 128 + N if signal N ended it.
    """

    output: str
    status: int


class Machine:
    """A machine that is up, and its root shell.

    Attributes:
        fixed: the machine is as it is (a board, a remote place): what
            MachineOptions asks for was not applied. `unmet` tells what differs.
        broken: the machine died or stopped answering; every further command
            fails.
    """

    def __init__(self, shell: Any, emulator: Any = None, console_log: Path | None = None) -> None:  # noqa: ANN401
        """Wrap active labgrid drivers; use `boot` instead.

        Args:
            shell: a driver with the CommandProtocol.
            emulator: the EmulatorDriver below it, if there is one.
            console_log: the file that takes the kernel's console.
        """
        self._shell = shell
        self._emulator = emulator
        self._console_log = console_log
        self._mark = ""
        self._taints_before: list[str] = []
        self.fixed = emulator is None
        self.broken = False
        self._driver(f"mkdir -p {_DIRECTORY}", _FETCH_SECONDS, "mkdir")
        if self.fixed:
            self._start_watch()

    def run(self, command: str, timeout: float = 60) -> Result:
        """Run a shell command in the guest.

        Args:
            command: any text `sh -c` takes; several lines are fine.
            timeout: seconds (of ours, not the guest's) after which the machine
                counts as hung.

        Raises:
            PagewrightError: the machine died or did not answer. What the
                command's status was is no matter here; see `check`.
        """
        fetch = _FETCH.format(chunk=0)
        lines = self._driver(_RUN.format(source=self._send(command), fetch=fetch), timeout, command)
        first = self._parse(lines)
        for _ in range(_FETCH_TRIES):
            try:
                status, _, output = self._collect(first, command).partition(b"\n")
                return Result(output.decode(errors="replace"), int(status))
            except (OSError, EOFError, ValueError):
                # Garbled on the way, as only a shared console does; it is still there.
                first = self._parse(self._driver(fetch, _FETCH_SECONDS, command))
        raise PagewrightError(f"the output of this command came back garbled: {command[:200]}")

    def check(self, command: str, timeout: float = 60) -> str:
        """Run a shell command that must succeed.

        Returns:
            Its output without trailing newlines, as `$(command)` in a shell.

        Raises:
            PagewrightError: as `run`, or the status is not 0.
        """
        result = self.run(command, timeout)
        if result.status != 0:
            raise PagewrightError(
                f"in the guest, status {result.status} from: {command[:200]}",
                details=tail(result.output, _CONSOLE_TAIL),
            )
        return result.output.rstrip("\n")

    def console(self) -> str:
        """Return all the kernel has printed so far; of a fixed place, its dmesg."""
        if self._console_log is None:
            return "" if self.broken else self.check("dmesg")
        if not self._console_log.is_file():
            return ""
        return self._console_log.read_bytes().decode(errors="replace").replace("\r\n", "\n")

    def warnings(self) -> str:
        """Return the kernel's complaints since boot, or since we connected to a fixed place.

        Warnings, lockdep's and KASAN's reports and the like, as dmesg shows
        them; a taint whose report has left the log is named. Empty if all is well.
        """
        log = self.check("dmesg")
        if self._mark and self._mark in log:
            log = log.split(self._mark, 1)[1]
        found = klog.splats(log)
        names = klog.taint_names(int(self.check("cat /proc/sys/kernel/tainted")))
        new = [name for name in names if name not in self._taints_before]
        return found or (f"the kernel is tainted: {', '.join(new)}" if new else "")

    def unmet(self, options: MachineOptions) -> list[str]:
        """Say which of the options a fixed place does not meet.

        The number of CPUs and the memory must be at least what is asked for,
        and the kernel must have been started with the parameters in `append`.
        `single_threaded` corrects the emulator and asks nothing of a place.
        """
        if not self.fixed:
            return []
        default = MachineOptions(options.kernel, options.rootfs)
        missing = [
            f"{name}={getattr(options, name)}"
            for name in ("cpu", "icount", "overlay", "extra_args")
            if getattr(options, name) != getattr(default, name)
        ]
        parameters = self.check("cat /proc/cmdline").split()
        missing += [f"append={word}" for word in options.append.split() if word not in parameters]
        if options.smp != default.smp and int(self.check("nproc")) < options.smp:
            missing.append(f"smp={options.smp}")
        if options.memory != default.memory:
            has = int(self.check("awk '/^MemTotal/ {print $2}' /proc/meminfo")) << 10
            # MemTotal leaves out what the kernel itself occupies.
            if has < 0.9 * _bytes(options.memory):
                missing.append(f"memory={options.memory}")
        return missing

    def _start_watch(self) -> None:
        """Remember what the kernel of a fixed place had to complain about before us."""
        self._mark = f"pagewright {uuid.uuid4().hex}"
        self.check(f"echo '{self._mark}' >/dev/kmsg")
        tainted = int(self.check("cat /proc/sys/kernel/tainted"))
        self._taints_before = klog.taint_names(tainted)

    def _send(self, command: str) -> str:
        """Bring a command to the guest; return the shell text that prints it there."""
        code = command.encode()
        if len(code) > _COMMAND_BYTES:
            raise PagewrightError(f"a command of {len(code)} bytes is too long; use an overlay")
        text = base64.b64encode(code).decode()
        if len(text) <= _PIECE:
            return f"echo {text} | base64 -d"
        for start in range(0, len(text), _PIECE):
            redirect = ">>" if start else ">"
            piece = text[start : start + _PIECE]
            self._driver(f"echo {piece} {redirect}{_DIRECTORY}/in", _FETCH_SECONDS, command)
        return "base64 -d in"

    def _parse(self, lines: list[str]) -> tuple[int, bytes]:
        """Split an answer into the size of the whole and its first chunk."""
        try:
            return int(lines[0]), base64.b64decode("".join(lines[1:]), validate=True)
        except (IndexError, ValueError, binascii.Error):
            return 0, b""

    def _collect(self, first: tuple[int, bytes], command: str) -> bytes:
        """Fetch what the first answer did not hold, and unpack."""
        size, packed = first
        for chunk in range(1, -(-size // _CHUNK)):
            lines = self._driver(_FETCH.format(chunk=chunk), _FETCH_SECONDS, command)
            packed += self._parse(lines)[1]
        if not packed or len(packed) != size:
            raise ValueError("incomplete")
        return gzip.decompress(packed)

    def _driver(self, text: str, timeout: float, command: str) -> list[str]:
        """Hand one line of shell to labgrid's driver; return the lines of its answer."""
        if self.broken:
            raise PagewrightError("this machine has failed before", details=self._last_lines())
        try:
            lines: list[str] = self._shell.run(text, timeout=timeout, decodeerrors="replace")[0]
        except _SILENCE as error:
            self.broken = True
            raise self._diagnose(error, timeout, f"while running: {command[:200]}") from error
        return lines

    def _diagnose(self, error: Exception, timeout: float, when: str) -> PagewrightError:
        """Say why the machine does not answer, with what it said last."""
        return _diagnose(self._emulator, self.console(), error, timeout, when)

    def _last_lines(self) -> str:
        return tail(self.console(), _CONSOLE_TAIL)


def _diagnose(
    emulator: Any,  # noqa: ANN401
    console: str,
    error: Exception,
    timeout: float,
    when: str,
) -> PagewrightError:
    """Say why a machine does not answer: it died, QEMU ended, or it hangs."""
    details = tail(console, _CONSOLE_TAIL)
    if cause := klog.cause_of_death(console):
        return PagewrightError(f"the guest kernel died {when}", cause, details)
    silent = isinstance(error, TIMEOUT | subprocess.TimeoutExpired)
    if emulator is not None:
        status = emulator.exit_status(timeout=0 if silent else 5)
        if status is not None:
            details = "\n".join(text for text in (emulator.messages(), details) if text)
            return PagewrightError(f"QEMU exited with status {status} {when}", details=details)
    if silent:
        return PagewrightError(f"no answer within {timeout:g} s {when}", details=details)
    return PagewrightError(f"the connection failed {when}: {error}", details=details)


@contextmanager
def boot(
    options: MachineOptions, env: Path | None = None, timeout: int = BOOT_SECONDS
) -> Iterator[Machine]:
    """Boot a machine, or connect to one, and end it with the context.

    Args:
        options: the machine; not applied if `env` is given.
        env: a labgrid environment file whose target "main" has a driver with
            the CommandProtocol and already runs our kernel and guest.
        timeout: seconds until its shell must have answered.

    Raises:
        PagewrightError: it did not come up.
    """
    with ExitStack() as stack:
        if env is not None:
            yield _connect(env, stack, timeout)
            return
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pagewright-")))
        yield _start(describe(options, directory, timeout), stack, timeout)


def _start(environment: Path, stack: ExitStack, timeout: float) -> Machine:
    """Start the QEMU that an environment file describes."""
    log = environment.with_name(CONSOLE_LOG)
    lab = Environment(str(environment))
    target = lab.get_target("main")
    stack.callback(lab.cleanup)
    emulator = target.get_driver(EmulatorDriver)
    stack.callback(emulator.off)
    try:
        emulator.on()
        shell = target.get_driver("ShellDriver")
    except _SILENCE as error:
        console = log.read_text(errors="replace") if log.is_file() else ""
        raise _diagnose(emulator, console, error, timeout, "while booting") from error
    return Machine(shell, emulator, log)


def _connect(env: Path, stack: ExitStack, timeout: float) -> Machine:
    """Connect to the place that a user's environment file describes."""
    lab = Environment(str(env))
    stack.callback(lab.cleanup)
    target = lab.get_target("main")
    if target is None:
        raise PagewrightError(f"{env} has no target named main")
    try:
        shell = target.get_driver("CommandProtocol")
    except NoDriverFoundError as error:
        raise PagewrightError(f"{env}: the target main has no driver that runs commands") from error
    except _SILENCE as error:
        raise _diagnose(
            None, "", error, timeout, f"while connecting to the place in {env}"
        ) from error
    return Machine(shell)


def _bytes(size: str) -> int:
    """Read a size as QEMU writes it; a bare number is in MiB."""
    shifts = {"K": 10, "M": 20, "G": 30, "T": 40}
    shift = shifts.get(size[-1].upper())
    return int(float(size) * 2**20) if shift is None else int(float(size[:-1]) * 2**shift)
