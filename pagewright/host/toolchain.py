"""The compilers: of kernels, of guest programs, and of what runs on this computer.

Debian's compiler for arm64 has the same name on every computer: on an arm64 one it is the
computer's own, elsewhere it is a cross compiler (see packages.py).
"""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path

from pagewright.host.run import run

CROSS = "aarch64-linux-gnu-"
GCC = f"{CROSS}gcc"
GCC_ARM32 = "arm-linux-gnueabihf-gcc"
OBJDUMP = f"{CROSS}objdump"
OBJCOPY = f"{CROSS}objcopy"
NM = f"{CROSS}nm"
ADDR2LINE = f"{CROSS}addr2line"
HOST_GCC = "gcc"
# Which LLVM compiles the kernels that Clang compiles: Debian 12 and 13 both have it.
LLVM = 19
CLANG = f"clang-{LLVM}"
# All that may compile something, of which a computer need not have the last one.
COMPILERS = (HOST_GCC, GCC, GCC_ARM32, CLANG)


def version(compiler: str) -> str:
    """Return what a compiler says of its version, in which Debian's have that of their package."""
    return run([compiler, "--version"]).splitlines()[0]


@cache
def with_library(compiler: str) -> str:
    """Return a compiler's version, and which C library it links statically."""
    library = Path(run([compiler, "-print-file-name=libc.a"]).strip())
    made = library.stat().st_mtime_ns if library.is_file() else "none"
    return f"{version(compiler)}, {library} of {made}"


def libc_version() -> str:
    """Return the version of the C library that programs for arm64 are linked with here."""
    command = [GCC, "-E", "-dM", "-include", "features.h", "-xc", "/dev/null"]
    return ".".join(re.findall(r"#define __GLIBC(?:_MINOR)?__ (\d+)", run(command)))


def encodings(*texts: str) -> dict[str, int]:
    """Assemble instructions of arm64, and return the word of each.

    The files are in a folder of their own: the suite's workers do this at the same time.
    """
    with tempfile.TemporaryDirectory(prefix="pagewright-") as folder:
        source, linked, code = (Path(folder) / name for name in ("i.s", "i.o", "i.bin"))
        source.write_text("".join(f"{text}\n" for text in (".arch armv8.7-a", *texts)))
        run([GCC, "-c", "-o", linked, source])
        run([OBJCOPY, "-O", "binary", linked, code])
        words = code.read_bytes()
    found = [int.from_bytes(words[at : at + 4], "little") for at in range(0, len(words), 4)]
    return dict(zip(texts, found, strict=True))
