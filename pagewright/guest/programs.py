"""C sources -> the programs of the guest, cross-compiled and static.

These are the guest's own (its first process, and what runs commands for the host), whose sources
are beside this file, and those of the features, which tests start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from pagewright.host.errors import BuildError, ProgramError
from pagewright.host.files import digest, replace_text
from pagewright.host.progress import say
from pagewright.host.run import run
from pagewright.host.toolchain import GCC, GCC_ARM32, with_library
from pagewright.host.workspace import Workspace
from pagewright.kernel.source import Source

# Where programs of features are in the guest: TESTS/FEATURE/PROGRAM.
TESTS = "usr/lib/tests"
# Where the guest's own programs are in it, by their sources.
OWN = {"init.c": "init", "command.c": "usr/sbin/run-command"}

COMPILERS = {".arm32.c": GCC_ARM32, ".c": GCC}
CFLAGS = ("-O2", "-g0", "-Wall", "-Wextra", "-static", "-pthread")
# Headers for programs of all features.
INCLUDE = Path(__file__).with_name("include")


def path(feature: str, name: str = "") -> str:
    """Return where a program of a feature is in the guest; the folder of all without a name."""
    return str(Path("/", TESTS, feature, name))


@dataclass(frozen=True)
class Program:
    """A program of the guest.

    Attributes:
        source: its only C file; headers are in the same folder, or in INCLUDE.
        target: where it is in the guest's root.
    """

    source: Path
    target: Path

    @property
    def compiler(self) -> str:
        """The compiler, which the end of the source's name says."""
        return next(COMPILERS[end] for end in COMPILERS if self.source.name.endswith(end))

    def made_of(self, pristine: Source) -> str:
        """Return a digest of all that it is made of: files, the compiler, the C library.

        The times of files do not tell: one that was put back, as by `cp -p` or `rsync -a`, is older
        than the program that was made in between.

        Args:
            pristine: the kernel's source, of whose headers the version tells.
        """
        headers = (*sorted(self.source.parent.glob("*.h")), *sorted(INCLUDE.glob("*.h")))
        # This file says how it is compiled.
        files = (self.source, *headers, Path(__file__))
        lines = [f"{file.name} {digest(file)}" for file in files]
        lines += [pristine.package_version, with_library(self.compiler)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def listed(space: Workspace) -> list[Program]:
    """Return all programs of the guest."""
    found = [Program(Path(__file__).with_name(name), Path(place)) for name, place in OWN.items()]
    for feature in space.features():
        for source in sorted((feature.path / "guest").glob("*.c")):
            end = next(end for end in COMPILERS if source.name.endswith(end))
            place = Path(TESTS) / feature.name / source.name.removesuffix(end)
            found.append(Program(source, place))
    return found


def ensure(space: Workspace, pristine: Source, folder: Path) -> list[Path]:
    """Compile the programs whose sources are others than before, and remove what is no program.

    All are compiled anew for another release of the kernel's source, with its headers, and with
    another compiler.

    Args:
        space: the repository.
        pristine: the kernel's source, for the headers of kselftest.
        folder: takes the programs, each at its place in the guest's root.

    Returns:
        The programs.

    Raises:
        BuildError: one does not compile.
    """
    compiled = 0
    made = []
    # What the programs in the folder are made of.
    stamp = folder.with_name(f"{folder.name}.json")
    known = json.loads(stamp.read_text()) if stamp.exists() else {}
    for program in listed(space):
        file, name, wanted = folder / program.target, str(program.target), program.made_of(pristine)
        if known.get(name) != wanted or not file.exists():
            # If this is interrupted, nobody knows what the program is made of.
            known.pop(name, None)
            replace_text(stamp, json.dumps(known, indent=1))
            _compile(program, pristine.path, file)
            known[name] = wanted
            replace_text(stamp, json.dumps(known, indent=1))
            compiled += 1
        made.append(file)
    _remove_strays(folder, set(made))
    if compiled:
        say(f"compiled {compiled} guest programs")
    return made


def _remove_strays(folder: Path, wanted: Set[Path]) -> None:
    """Remove from a folder what is not wanted, and the folders in it that are empty then."""
    # What is in a folder comes before the folder.
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in wanted:
            path.unlink()


def _compile(program: Program, pristine: Path, file: Path) -> None:
    """Compile a program; the file is there only when it is whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}")
    headers = pristine / "tools" / "testing" / "selftests"
    including = ("-I", INCLUDE, "-isystem", headers)
    try:
        run([program.compiler, *CFLAGS, *including, program.source, "-o", fresh])
    except ProgramError as error:
        raise BuildError(
            f"the guest program {program.source} does not compile", details=error.details
        ) from error
    fresh.rename(file)
