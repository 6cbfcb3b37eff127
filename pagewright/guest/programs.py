"""C sources -> the programs of the guest, cross-compiled and static.

These are the guest's own (its first process, and what runs commands for the host), whose sources
are beside this file, and those of the features, which tests start.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from pagewright.host.errors import BuildError, ProgramError
from pagewright.host.progress import say
from pagewright.host.run import run
from pagewright.host.toolchain import GCC, GCC_ARM32
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

    def newest(self) -> float:
        """Return when it, a header or the way of compiling last changed."""
        headers = (*self.source.parent.glob("*.h"), *INCLUDE.glob("*.h"))
        inputs = (self.source, *headers, Path(__file__))
        return max(file.stat().st_mtime for file in inputs)


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
    """Compile the programs that are older than their sources, and remove what is no program.

    All are compiled anew for another release of the kernel's source: its headers may be older
    than programs that were made with those of the last release.

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
    stamp = folder.with_name(f"{folder.name}.source")
    all_anew = not stamp.exists() or stamp.read_text() != pristine.package_version
    if all_anew:
        # If this is interrupted, some are of one release and some of the other.
        stamp.unlink(missing_ok=True)
    for program in listed(space):
        file = folder / program.target
        if all_anew or not file.exists() or file.stat().st_mtime < program.newest():
            _compile(program, pristine.path, file)
            compiled += 1
        made.append(file)
    if all_anew:
        folder.mkdir(parents=True, exist_ok=True)
        stamp.write_text(pristine.package_version)
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
