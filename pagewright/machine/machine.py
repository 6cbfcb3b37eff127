"""A running machine: run commands in it, read its files, hear when it dies.

How a machine comes to run is in boot.py, how commands and their outputs travel in
transport.py, and how its death is explained in death.py.

labgrid keeps one stack of steps for the whole process: use machines from one
thread at a time.
"""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labgrid.util.qmp import QMPError
from pexpect import TIMEOUT  # type: ignore[import-untyped]

from pagewright.host.errors import (
    CommandFailedError,
    MachineError,
)
from pagewright.host.run import tail
from pagewright.machine import evidence, klog, strict
from pagewright.machine.death import CONSOLE_TAIL, SILENCE, diagnose
from pagewright.machine.options import MachineOptions, unmet
from pagewright.machine.qemu import OUTPUT
from pagewright.machine.strict import Strict, Violation
from pagewright.machine.transport import Channel, Lines

# A debug kernel that counts instructions takes minutes to boot. Machines that
# die while booting are noticed at once, so only a hang costs this long.
BOOT_SECONDS = 300

# What the guest's init says when its shell is about to run.
_READY = "guest-init: ready"


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
        build: the build that a fixed place says it runs (`options: build:` in its
            environment file), or empty.
        logs: the folder with its console and its commands (see evidence.py), if it has one.
        strict: how strict the machine is, if it is.
        broken: the machine died or stopped answering; every further command
            fails.
    """

    def __init__(
        self,
        shell: Any,  # noqa: ANN401
        emulator: Any = None,  # noqa: ANN401
        directory: Path | None = None,
        logs: Path | None = None,
    ) -> None:
        """Wrap active labgrid drivers; use `boot` instead.

        Args:
            shell: a driver with the CommandProtocol.
            emulator: the EmulatorDriver below it, if there is one.
            directory: where the emulator keeps the machine's files.
            logs: where its console is, and where its commands are written down.
        """
        self._shell = shell
        self._emulator = emulator
        self._directory = directory or Path()
        self.logs = logs
        self._console_log = logs / evidence.CONSOLE if logs else None
        self._transcript = evidence.Transcript(logs / evidence.COMMANDS) if logs else None
        self.build = ""
        self.strict: Strict | None = None
        self._running = ""
        self._mark = ""
        self._taints_before: list[str] = []
        self.fixed = emulator is None
        self.broken = False
        self._transport: Channel | Lines
        if directory is None:
            self._transport = Lines(self._line)
            self._start_watch()
        else:
            # Nobody looks at this terminal, and every echoed byte is an exit to QEMU.
            self._line("stty -echo", BOOT_SECONDS)
            self._transport = Channel(self._line, directory / OUTPUT)

    def run(self, command: str, timeout: float = 60) -> Result:
        """Run a shell command in the guest.

        Args:
            command: any text `sh -c` takes; several lines are fine.
            timeout: seconds (of ours, not the guest's) after which the machine
                counts as hung.

        Raises:
            GuestDiedError, GuestHungError: it died or did not answer. A status other than 0
                is no error here; see `check`.
        """
        self._running = command
        if self._transcript:
            self._transcript.begin(command)
        status, output = self._transport.run(command, timeout)
        result = Result(output.decode(errors="replace"), status)
        if self._transcript:
            self._transcript.end(status, result.output)
        return result

    def check(self, command: str, timeout: float = 60) -> str:
        """Run a shell command that must succeed.

        Returns:
            Its output without trailing newlines, as `$(command)` in a shell.

        Raises:
            CommandFailedError: the status is not 0.
            GuestDiedError, GuestHungError: as `run`.
        """
        result = self.run(command, timeout)
        if result.status != 0:
            raise CommandFailedError(
                f"in the guest, status {result.status} from: {command[:200]}",
                details=tail(result.output, CONSOLE_TAIL),
            )
        return result.output.rstrip("\n")

    def read(self, *files: str) -> list[str]:
        """Return the contents of several files, without trailing newlines, in one go.

        Raises:
            CommandFailedError: one of them cannot be read.
        """
        names = shlex.join(files)
        text = self.check(f"for file in {names}; do cat \"$file\" && printf '\\0' || exit; done")
        return [content.rstrip("\n") for content in text.split("\0")[:-1]]

    def meminfo(self) -> dict[str, int]:
        """Return /proc/meminfo: the numbers by name, as they stand there (mostly KiB)."""
        lines = self.check("cat /proc/meminfo").splitlines()
        return {line.split(":")[0]: int(line.split()[1]) for line in lines}

    def vmstat(self) -> dict[str, int]:
        """Return /proc/vmstat: the counts by name."""
        lines = self.check("cat /proc/vmstat").splitlines()
        return {name: int(count) for name, count in map(str.split, lines)}

    def console(self) -> str:
        """Return all the kernel has printed so far.

        Of a fixed place it is its dmesg, and if that does not answer any more, what was read of
        its console since we connected.
        """
        if self.fixed and not self.broken:
            return self.check("dmesg")
        if self._console_log is None or not self._console_log.is_file():
            return ""
        return self._console_log.read_bytes().decode(errors="replace").replace("\r\n", "\n")

    def warnings(self, without: Callable[[str], str] | None = None) -> str:
        """Return the kernel's complaints since boot, or since we connected to a fixed place.

        Warnings, lockdep's and KASAN's reports and the like, as dmesg shows
        them; a taint whose report has left the log is named. Where the kernel has overwritten
        some of its log, they are as the console shows them, with those that a test has cleared.
        Empty if all is well.

        Args:
            without: leaves reports out of a log that a test expects, such as
                klog.without_dying_cpus.
        """
        log, tainted = self._log_and_taints()
        if self._mark and self._mark in log:
            log = log.split(self._mark, 1)[1]
        explained = set(self._taints_before)
        if without and (rest := without(log)) != log:
            # What is left out has left its taint.
            explained.add(klog.WARNING)
            log = rest
        found = klog.splats(log)
        new = [name for name in klog.taint_names(tainted) if name not in explained]
        return found or (f"the kernel is tainted: {', '.join(new)}" if new else "")

    def violations(self) -> list[Violation]:
        """Return what could have gone wrong on hardware since boot, and is not explained.

        Raises:
            MachineError: the machine is not a strict one.
        """
        if self.strict is None or self.logs is None:
            raise MachineError("only a strict machine knows violations", "boot it with strict=True")
        file = self.logs / evidence.VIOLATIONS
        found = strict.read(file, self.strict)
        # Modules are asked for only if there is something that may be in one.
        if found and not self.broken:
            modules = self.run(r"grep '\[' /proc/kallsyms").output
            found = strict.read(file, self.strict, modules)
        return found

    def _log_and_taints(self) -> tuple[str, int]:
        # A read of /dev/kmsg returns one record.
        first = "dd if=/dev/kmsg bs=8192 count=1 2>/dev/null"
        tainted = "cat /proc/sys/kernel/tainted"
        text = self.check(f"dmesg; printf '\\0'; {first}; printf '\\0'; {tainted}")
        log, record, mask = text.rsplit("\0", 2)
        # The console of a fixed place is its dmesg, that of a server has no mark of ours.
        if not self._mark and klog.lacks_records(log, record):
            log = klog.since_boot(self.console())
        return log, int(mask)

    def monitor(self, command: str, **arguments: Any) -> Any:  # noqa: ANN401
        """Give QEMU's monitor a QMP command, such as qom-set, and return its answer.

        Raises:
            MachineError: there is no emulator, or the command failed.
        """
        if self._emulator is None:
            raise MachineError("a fixed place has no QEMU monitor")
        try:
            return self._emulator.monitor_command(command, arguments)
        except (QMPError, OSError) as error:
            if self._emulator.exit_status(timeout=1) is not None:
                self.broken = True
                raise diagnose(self._emulator, self.console(), error, 0, f"at {command}") from error
            raise MachineError(f"QEMU's monitor refused {command}: {error}") from error

    def start_anew(self, command: str, timeout: float = BOOT_SECONDS) -> None:
        """Run a command after which a kernel boots again, and wait for its shell.

        For kexec and crash dumps, which keep the machine; nothing comes back of
        what the command prints.

        Args:
            command: must end in a new kernel.
            timeout: seconds until the new kernel's guest must be ready.

        Raises:
            MachineError: there is no emulator, or the new shell did not come.
        """
        if self._emulator is None:
            raise MachineError("a fixed place cannot start a kernel anew")
        boots = self.console().count(_READY)
        self.check(f"setsid sh -c {shlex.quote(f'sleep 2; {command}')} >/dev/null 2>&1 &")
        give_up = time.monotonic() + timeout
        while self.console().count(_READY) <= boots:
            if self._emulator.exit_status(timeout=0.2) is not None or time.monotonic() > give_up:
                self.broken = True
                raise diagnose(self._emulator, self.console(), TIMEOUT(""), timeout, command)
        target = self._shell.target
        try:
            target.deactivate(self._shell)
            target.activate(self._shell)
        except SILENCE as error:
            self.broken = True
            when = f"after: {command[:200]}"
            raise diagnose(self._emulator, self.console(), error, timeout, when) from error
        self._line("stty -echo", timeout)
        self._transport.close()
        self._transport = Channel(self._line, self._directory / OUTPUT)

    def ended(self, timeout: float) -> int | None:
        """Wait until the emulator has ended; return its exit status, None if it goes on."""
        if self._emulator is None:
            raise MachineError("a fixed place does not end")
        status: int | None = self._emulator.exit_status(timeout)
        self.broken = status is not None
        return status

    def close(self) -> None:
        """Give up what is open on this computer for the machine; no command follows."""
        self._transport.close()

    def unmet(self, options: MachineOptions) -> list[str]:
        """Say which of the options a fixed place does not meet; see options.unmet."""
        return unmet(options, self.check) if self.fixed else []

    def _start_watch(self) -> None:
        """Remember what the kernel of a fixed place had to complain about before us."""
        self._mark = f"pagewright {uuid.uuid4().hex}"
        self.check(f"echo '{self._mark}' >/dev/kmsg")
        tainted = int(self.check("cat /proc/sys/kernel/tainted"))
        self._taints_before = klog.taint_names(tainted)

    def _line(self, text: str, timeout: float) -> list[str]:
        """Hand one line of shell to labgrid's driver; return the lines of its answer."""
        if self.broken:
            details = tail(self.console(), CONSOLE_TAIL)
            raise MachineError("this machine has failed before", details=details)
        try:
            lines: list[str] = self._shell.run(text, timeout=timeout, decodeerrors="replace")[0]
        except SILENCE as error:
            self.broken = True
            when = f"while running: {self._running[:200]}"
            raise diagnose(self._emulator, self.console(), error, timeout, when) from error
        return lines
