"""The compilers: of kernels, of guest programs, and of what runs on this computer.

Debian's compiler for arm64 has the same name on every computer: on an arm64 one it is the
computer's own, elsewhere it is a cross compiler (see packages.py).
"""

from __future__ import annotations

import re

from pagewright.host.run import run

CROSS = "aarch64-linux-gnu-"
GCC = f"{CROSS}gcc"
GCC_ARM32 = "arm-linux-gnueabihf-gcc"
OBJDUMP = f"{CROSS}objdump"
OBJCOPY = f"{CROSS}objcopy"
NM = f"{CROSS}nm"
ADDR2LINE = f"{CROSS}addr2line"
HOST_GCC = "gcc"


def libc_version() -> str:
    """Return the version of the C library that programs for arm64 are linked with here."""
    command = [GCC, "-E", "-dM", "-include", "features.h", "-xc", "/dev/null"]
    return ".".join(re.findall(r"#define __GLIBC(?:_MINOR)?__ (\d+)", run(command)))
