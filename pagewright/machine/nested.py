"""A guest inside a guest: the outer one's kernel is its KVM, Debian's QEMU its monitor.

`lay_out` makes the overlay that an outer machine needs (QEMU with its libraries, and the
kernel's Image); `run` boots that kernel inside it, with little more than busybox and the
kernel's modules, and has it run one command. The command's output leaves through a port of
its own, so that nothing the inner kernel prints gets into it.
"""

from __future__ import annotations

import shlex
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewright.guest import image
from pagewright.host import arm64_packages
from pagewright.host.errors import MachineError
from pagewright.host.run import run as start
from pagewright.host.run import tail
from pagewright.host.workspace import Workspace
from pagewright.machine import klog
from pagewright.machine.machine import Machine

# Not in every guest's image: it takes 50 MB.
PACKAGES = ("qemu-system-arm",)
_MONITOR = "usr/bin/qemu-system-aarch64"
_LIBRARIES = "usr/lib/aarch64-linux-gnu"

_FOLDER = "/run/inner"

# What the first process of an inner guest says between the command's output and the log.
_STATUS = "inner guest: status "
_INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin port=/dev/vport0p1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t debugfs debugfs /sys/kernel/debug
sh /command >$port 2>&1
echo "{_STATUS}$?" >$port
dmesg >$port
poweroff -f
"""

# Makes the inner guest's root and runs it; what it needs comes as shell variables.
_RUN = """
rm -rf $folder && mkdir -p $folder/root && cd $folder/root &&
mkdir bin dev lib proc sys tmp && cp /usr/bin/busybox bin &&
cp -L --parents $(ldd bin/busybox | grep -o '/lib[^ ]*') . || exit 1
[ ! -d /usr/lib/modules ] || cp -a /usr/lib/modules lib || exit 1
[ -z "$files" ] || cp -a --parents $files . || exit 1
echo "$init" >init && chmod 755 init && echo "$command" >command || exit 1
busybox find . | busybox cpio -o -H newc >../initrd 2>/dev/null && cd .. && rm -r root || exit 1
touch output console
timeout $seconds qemu-system-aarch64 -accel kvm -cpu host -machine virt,gic-version=host \\
    -smp $smp -m $memory -nodefaults -no-user-config -display none -no-reboot \\
    -kernel /boot/Image -initrd initrd -append "$append" \\
    -chardev file,id=console,path=console -serial chardev:console \\
    -chardev file,id=output,path=output -device virtio-serial-pci \\
    -device virtserialport,chardev=output 2>&1
"""

# Each character on this console costs several exits to the monitor: it gets warnings and
# worse, and the whole log follows the command's output.
_PARAMETERS = "console=ttyAMA0 earlycon=pl011,0x9000000 loglevel=5 panic=-1 oops=panic"


@dataclass(frozen=True)
class Ended:
    """How an inner guest ended.

    Attributes:
        output: all its command wrote.
        status: the command's exit status.
        log: all its kernel had to say, until the command ended.
    """

    output: str
    status: int
    log: str

    @property
    def warnings(self) -> str:
        """The inner kernel's complaints; empty if there are none."""
        return klog.splats(self.log)


def lay_out(space: Workspace, target: Path, kernel: Path) -> Path:
    """Make the folder to lay over the root of a machine that has inner guests.

    Args:
        space: the repository.
        target: is made, and takes about 100 MB.
        kernel: the Image that the inner guests boot.

    Returns:
        The folder, for MachineOptions.overlay.
    """
    with tarfile.open(arm64_packages.fetch(space, image.PACKAGES).tar) as archive:
        there = set(archive.getnames())
    packages = arm64_packages.fetch(space, PACKAGES).tar
    with tarfile.open(packages) as archive:
        wanted = [n for n in archive.getnames() if n not in there and _is_wanted(n)]
    target.mkdir()
    start(
        ["tar", "-x", "--no-same-owner", "-f", packages, "-C", target, "-T", "-"],
        stdin="\n".join(wanted),
    )
    (target / "boot").mkdir()
    shutil.copy(kernel, target / "boot" / "Image")
    return target


def _is_wanted(name: str) -> bool:
    """Tell whether a file of the packages is the monitor or a library of its."""
    path = Path(name)
    return str(path) == _MONITOR or (str(path.parent) == _LIBRARIES and ".so" in path.name)


def run(
    place: Machine,
    command: str,
    smp: int = 2,
    memory: str = "256M",
    append: str = "",
    files: Sequence[str] = (),
    timeout: int = 300,
) -> Ended:
    """Boot an inner guest, run a shell command in it, and power it off.

    Args:
        place: was booted with `virtualization`, the overlay that `lay_out` made, and a
            kernel that has KVM.
        command: for busybox's sh; of the outer guest's programs it has no others.
        smp: number of CPUs.
        memory: size of RAM.
        append: kernel parameters added to its own.
        files: absolute paths in the outer guest, without spaces, that it is to have too.
        timeout: seconds after which it counts as hung.

    Raises:
        MachineError: it did not boot, died or hung.
    """
    variables = {
        "folder": _FOLDER,
        "files": " ".join(files),
        "init": _INIT,
        "command": command,
        "seconds": timeout,
        "smp": smp,
        "memory": memory,
        "append": f"{_PARAMETERS} {append}".strip(),
    }
    script = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in variables.items())
    # Boards are as slow to make the root as guests; the monitor has its own time limit.
    monitor = place.run(script + _RUN, timeout=timeout + 60)
    output, marker, rest = place.run(f"cat {_FOLDER}/output").output.partition(_STATUS)
    if monitor.status == 0 and marker:
        status, _, log = rest.partition("\n")
        return Ended(output, int(status), log)
    console = place.run(f"cat {_FOLDER}/console").output.replace("\r\n", "\n")
    details = "\n".join(text for text in (monitor.output, tail(console, 40)) if text)
    if cause := klog.cause_of_death(console):
        raise MachineError(f"the inner guest's kernel died: {cause}", details=details)
    if monitor.status == 124:
        raise MachineError(f"the inner guest did not end within {timeout} s", details=details)
    raise MachineError(
        f"the inner guest's monitor ended with status {monitor.status}", details=details
    )
