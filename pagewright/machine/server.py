"""A whole Debian system in QEMU, which boots as servers do: UEFI, GRUB, an initramfs, systemd.

Unlike other machines, this one keeps its disk: what is installed in one boot is there in the next.
Each boot is a run of QEMU, which ends when the guest reboots or powers off.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
from labgrid import Environment
from labgrid.util.yaml import dump, load

from pagewright.guest import debian
from pagewright.host.errors import MachineError
from pagewright.host.files import digest, replace_text
from pagewright.host.ledger import timed
from pagewright.host.lock import lock
from pagewright.host.packages import UEFI_CODE, UEFI_SECURE_VARIABLES, UEFI_VARIABLES
from pagewright.host.progress import Bar
from pagewright.host.run import run, tail
from pagewright.host.scratch import scratch, temporary
from pagewright.host.workspace import Workspace
from pagewright.machine import evidence
from pagewright.machine.death import CONSOLE_TAIL, SILENCE, diagnose
from pagewright.machine.emulator import EmulatorDriver
from pagewright.machine.machine import Machine
from pagewright.machine.options import DEFAULT_CPU

_SERVER = Path(__file__).with_name("server.yaml")
# An emulated machine takes minutes for what a server does in seconds.
BOOT_SECONDS = 1800
_END_SECONDS = 300
_SECOND_STAGE_SECONDS = 7200
_DONE = f"{debian.SECOND_STAGE.replace('-', ' ')}: done"
_CPUS = 2
# QEMU with the console where its standard input and output are.
_QEMU = (
    *("qemu-system-aarch64", "-machine", "virt,gic-version=3", "-cpu", DEFAULT_CPU),
    *("-smp", str(_CPUS), "-m", "2G", "-nographic", "-nic", "none", "-no-reboot"),
    *("-accel", "tcg,thread=multi"),
)


@dataclass(frozen=True)
class Server:
    """A machine with a disk of its own.

    Attributes:
        disk: the disk, raw.
        variables: what its UEFI remembers.
        files: a folder whose files each boot finds on a second disk (see `bring`); may be None.
        cpu: QEMU's CPU model.
    """

    disk: Path
    variables: Path
    files: Path | None = None
    cpu: str = DEFAULT_CPU

    @contextmanager
    def boot(self, reboots: bool = False, timeout: int = BOOT_SECONDS) -> Iterator[Machine]:
        """Switch it on, and off with the context.

        Args:
            reboots: it boots again when the guest says so, rather than ending then.
            timeout: seconds until its shell must have answered.

        Raises:
            MachineError: it did not come up.
        """
        with ExitStack() as stack:
            directory = stack.enter_context(temporary("machine"))
            logs = evidence.claim(directory)
            lab = Environment(str(self._describe(directory, logs, reboots, timeout)))
            stack.callback(lab.cleanup)
            target = lab.get_target("main")
            emulator = target.get_driver(EmulatorDriver)
            stack.callback(emulator.off)
            try:
                with timed("boot"):
                    emulator.on()
                    shell = target.get_driver("ShellDriver")
                    # Lines that a terminal wraps would come back with more in them.
                    shell.run("stty -echo columns 0", timeout=timeout)
                    machine = Machine(shell, emulator, None, logs)
            except SILENCE as error:
                log = logs / evidence.CONSOLE
                console = log.read_text(errors="replace") if log.is_file() else ""
                raise diagnose(emulator, console, error, timeout, "while booting") from error
            stack.callback(machine.close)
            yield machine

    def _describe(self, directory: Path, logs: Path, reboots: bool, timeout: int) -> Path:
        """Write labgrid's environment file."""
        with _SERVER.open() as file:
            place = load(file)
        drivers = place["targets"]["main"]["drivers"]
        drivers["ShellDriver"]["login_timeout"] = timeout
        emulator = drivers["EmulatorDriver"]
        emulator["cpu"] = self.cpu
        emulator["stderr"] = str(logs / evidence.STDERR)
        arguments = ["-smp", str(_CPUS), *_disks(self.disk, self.variables)]
        arguments += ["-serial", f"file:{logs / evidence.CONSOLE}", "-serial", "none"]
        if not reboots:
            arguments.append("-no-reboot")
        if self.files:
            archive = directory / "files.tar"
            run(["tar", "-c", "-f", archive, "-C", self.files, "."])
            arguments += ["-drive", f"if=none,id=files,format=raw,readonly=on,file={archive}"]
            arguments += ["-device", "virtio-blk-pci,drive=files,serial=files"]
        emulator["extra_args"] = f"{emulator['extra_args']} {shlex.join(arguments)}"
        environment = directory / "environment.yaml"
        environment.write_text(dump(place))
        return environment


def bring(machine: Machine, target: str) -> None:
    """Have a server unpack the files that it was given into a folder of its own."""
    disk = "/dev/disk/by-id/virtio-files"
    machine.check(f"mkdir -p {target} && tar -x -f {disk} -C {target}", 300)


def shut_down(machine: Machine, command: str = "systemctl reboot") -> None:
    """Have a server end as servers do, and wait until it has.

    Raises:
        MachineError: it goes on.
    """
    machine.run(f"(sleep 1; {command}) >/dev/null 2>&1 &")
    if machine.ended(_END_SECONDS) is None:
        details = tail(machine.console(), CONSOLE_TAIL)
        raise MachineError(f"the server goes on after {command}", details=details)


def confirm_key(server: Server, password: str) -> None:
    """Have shim trust the key that mokutil was given, as someone does who sits at the console.

    Args:
        server: it is off, and was shut down after `mokutil --import`.
        password: the one that mokutil was told.

    Raises:
        MachineError: a question does not come, the password is another one, or the server does not
            reboot after the last question.
    """
    next_entry = "\x1b[B\r"
    answers = {
        "Press any key to perform MOK management": "\r",
        "Enroll MOK": next_entry,
        "View key 0": next_entry,
        "Enroll the key": next_entry,
        "Password": f"{password}\r",
        "Reboot": "\r",
    }
    with temporary("machine") as directory:
        console = evidence.claim(directory) / evidence.CONSOLE
        command, *arguments = [*_QEMU, *_disks(server.disk, server.variables)]
        with console.open("wb") as log:
            qemu = pexpect.spawn(command, arguments, timeout=_END_SECONDS)
            # What it prints, and not what is typed: the password is in there.
            qemu.logfile_read = log
            try:
                for question, answer in answers.items():
                    qemu.expect(question)
                    qemu.send(answer)
                qemu.expect(pexpect.EOF)
            except SILENCE as error:
                details = tail(console.read_text(errors="replace"), CONSOLE_TAIL)
                raise MachineError(
                    "the MOK manager did not take the key", details=details
                ) from error
            finally:
                qemu.close(force=True)


def new(space: Workspace, folder: Path, release: str, secure_boot: bool = False) -> Server:
    """Return a server with a fresh Debian, as it is after its installation.

    Args:
        space: the repository.
        folder: takes the disk and what UEFI remembers.
        release: the release of Debian.
        secure_boot: UEFI starts nothing that is not signed.
    """
    installed = _install(space, release)
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(folder / "disk.img", folder / "variables.img", folder / "files")
    run(["cp", "--sparse=always", "--reflink=auto", installed, server.disk])
    variables = UEFI_SECURE_VARIABLES if secure_boot else UEFI_VARIABLES
    shutil.copyfile(variables, server.variables)
    (folder / "files").mkdir(exist_ok=True)
    return server


def _install(space: Workspace, release: str) -> Path:
    """Bring the disk of a fresh Debian up to date, and return it."""
    store = space.out / "system"
    target = store / f"{release}.img"
    stamp = target.with_suffix(".stamp")
    with lock(store, "the disk of a whole Debian"):
        fetched = debian.fetch(space, release)
        inputs = [fetched.listing, Path(debian.__file__), debian.SCRIPT, debian.FIRST_STAGE]
        key = "".join(f"{digest(file)}\n" for file in inputs)
        if target.exists() and stamp.exists() and stamp.read_text() == key:
            return target
        stamp.unlink(missing_ok=True)
        with scratch(store, "install-") as work:
            extracted = debian.extract(fetched, work)
            _second_stage(extracted, store / "second-stage.log")
            extracted.disk.rename(target)
        replace_text(stamp, key)
    return target


def _second_stage(extracted: debian.Extracted, log: Path) -> None:
    """Boot the extracted packages once, so that they are installed."""
    command = [*_QEMU, "-kernel", str(extracted.kernel), "-initrd", str(extracted.initramfs)]
    command += ["-append", "console=ttyAMA0 panic=-1"]
    drive = f"if=virtio,format=raw,cache=unsafe,file={extracted.disk}"
    with Bar("install a whole Debian", None):
        run([*command, "-drive", drive], log=log, timeout=_SECOND_STAGE_SECONDS)
    console = log.read_text(errors="replace")
    if _DONE not in console:
        raise MachineError(
            "the installation of a whole Debian failed",
            f"all it printed is in {log}",
            tail(console, CONSOLE_TAIL),
        )


def _disks(disk: Path, variables: Path) -> Sequence[str]:
    """Return the arguments for UEFI, with what it remembers, and for the disk."""
    code = f"if=pflash,unit=0,format=raw,readonly=on,file={UEFI_CODE}"
    remembered = f"if=pflash,unit=1,format=raw,file={variables}"
    # Nobody needs the disk if this computer fails meanwhile.
    return (
        *("-drive", code, "-drive", remembered),
        *("-drive", f"if=virtio,format=raw,cache=unsafe,file={disk}"),
    )
