"""Boot a build without disk and shell: it runs only KUnit and one program."""

from __future__ import annotations

from pathlib import Path

from pagewright.host.run import run
from pagewright.host.toolchain import GCC
from pagewright.kernel.build import Build
from pagewright.machine.options import DEFAULT_CPU

SOURCE = Path(__file__).parent.parent / "bare_init.c"
BOOT_SECONDS = 600


def initramfs(built: Build, directory: Path, endianness: str) -> Path:
    """Make an initramfs with the program for a build.

    Args:
        built: the build, whose generator of such archives is used.
        directory: takes the archive.
        endianness: "big" or "little", as the kernel is.
    """
    program, archive = directory / "init", directory / "initramfs.cpio"
    flags = ["-Wall", "-Werror", "-O2", "-ffreestanding", "-fno-stack-protector"]
    run([GCC, f"-m{endianness}-endian", *flags, "-nostdlib", "-static", SOURCE, "-o", program])
    listed = directory / "initramfs.list"
    listed.write_text(
        "dir /dev 0755 0 0\n"
        "nod /dev/console 0600 0 0 c 5 1\n"
        "dir /debug 0755 0 0\n"
        f"file /init {program} 0755 0 0\n"
    )
    generator = built.out / "usr" / "gen_init_cpio"
    run(["sh", "-c", 'exec "$0" "$1" >"$2"', generator, listed, archive])
    return archive


def console(built: Build, archive: Path, append: str, cpu: str = DEFAULT_CPU) -> str:
    """Boot a build until the machine ends, and return what its console says."""
    return run(
        [
            *("qemu-system-aarch64", "-machine", "virt,gic-version=3", "-cpu", cpu),
            *("-smp", "3", "-m", "1G", "-nodefaults", "-display", "none", "-serial", "stdio"),
            *("-no-reboot", "-kernel", built.image, "-initrd", archive),
            *("-append", f"console=ttyAMA0 earlycon=pl011,0x9000000 panic=-1 {append}"),
        ],
        timeout=BOOT_SECONDS,
    )
