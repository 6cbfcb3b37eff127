"""Where the runs of an experiment happen: in QEMU on this computer, or on a place of a lab."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pagewright.guest import image
from pagewright.host import packages
from pagewright.host.errors import MeasureError
from pagewright.host.files import digest
from pagewright.host.progress import Bar
from pagewright.host.workspace import Workspace
from pagewright.kernel import build, modules
from pagewright.kernel.build import Build
from pagewright.kernel.manifest import Manifest
from pagewright.machine import count, tlb
from pagewright.machine.boot import boot
from pagewright.machine.inputs import lacking, options_for, parameters
from pagewright.machine.machine import Machine
from pagewright.machine.options import MachineOptions
from pagewright.results.experiment import Part, Side, Values, Work, parse_values
from pagewright.results.journal import Conditions

# What tells the kernel of a place from another build of the same name, and one boot of it from a
# boot with other parameters or fewer CPUs.
_SAYS_OF_ITSELF = ("sha256sum /sys/kernel/notes", "cat /proc/cmdline", "nproc")

# What makes an emulated machine: QEMU's command line. The plugin that counts comes to it.
_MACHINE_FILES = ("qemu.yaml", "qemu.py", "options.py")


class Runner(Protocol):
    """Something that can run the works of a part on a side."""

    place: str

    def left_out(self, part: Part, side: Side) -> str:
        """Say why a side of a part cannot be run here; nothing if it can."""

    def conditions(self, part: Part, side: Side, works: Sequence[Work]) -> Conditions:
        """Return what a run would be measured on now."""

    def packages(self) -> dict[str, str]:
        """Return the guest's packages with their versions, if they are known."""

    def run(self, what: str, part: Part, side: Side, run: int) -> dict[str, list[Values]]:
        """Do one run; return what each round of each work printed.

        Args:
            what: the run, for the progress bar.
            part: what runs.
            side: on what.
            run: the number of the run.

        Raises:
            MeasureError: the kernel complained while it was measured.
            MachineError: a machine or a work failed.
        """


def options_of(part: Part, side: Side) -> dict[str, Any]:
    """Return the machine's options of a side of a part."""
    words = (part.options.get("append", ""), side.append)
    return {**part.options, "append": " ".join(word for word in words if word)}


def execute(machine: Machine, what: str, works: Sequence[Work]) -> dict[str, list[Values]]:
    """Execute works on a machine, in all their rounds, and return what each round printed.

    They take turns, because what a round costs depends a little on what ran before.

    Raises:
        MeasureError: the kernel complained while it was measured.
    """
    turns = [w for turn in range(max(w.rounds for w in works)) for w in works if turn < w.rounds]
    printed: dict[str, list[Values]] = {work.name: [] for work in works}
    with Bar(what, len(turns)) as bar:
        for work in turns:
            text = machine.check(work.command, timeout=work.timeout)
            printed[work.name].append(parse_values(text))
            bar.advance()
    if complaint := machine.warnings():
        raise MeasureError(
            f"{what}: the kernel complained while it was measured", details=complaint
        )
    return printed


def _commands(works: Sequence[Work]) -> str:
    """Digest what works execute."""
    return _digest(*((work.name, work.command, work.rounds) for work in works))


def _digest(*parts: Any) -> str:  # noqa: ANN401
    """Digest anything that can be written as JSON."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _tree_of(built: Build) -> str:
    """Return the key of the tree that a build was made from, which may be edited later."""
    manifest = Manifest.read(built.tree)
    return manifest.key(built.tree) if manifest else built.source


class Emulator:
    """Boots each run in QEMU on this computer."""

    place = ""

    def __init__(self, space: Workspace) -> None:
        """Take the repository whose builds and guest are booted."""
        self._space = space

    def left_out(self, part: Part, side: Side) -> str:
        """Return nothing: QEMU can do all that experiments ask for."""
        return ""

    def conditions(self, part: Part, side: Side, works: Sequence[Work]) -> Conditions:
        """Bring the side's build and the guest up to date and describe them."""
        built = build.ensure(self._space, side.build)
        files = self._made_of(part)
        return Conditions(
            kernel=built.source,
            tree=_tree_of(built),
            image=digest(built.image),
            emulator=f"QEMU {packages.qemu_version()}",
            guest=self._guest(),
            work=_commands(works),
            machine=self._machine(options_of(part, side), files),
            common=self._machine(part.options, files),
        )

    def packages(self) -> dict[str, str]:
        """Return the packages listed beside the guest's image, if they are."""
        image.ensure(self._space)
        file = image.listing(self._space)
        lines = file.read_text().splitlines() if file.exists() else []
        return dict(line.split(maxsplit=1) for line in lines if " " in line)

    def run(self, what: str, part: Part, side: Side, run: int) -> dict[str, list[Values]]:
        """Boot a machine and execute the works of one run on it."""
        options = options_for(self._space, side.build, **options_of(part, side))
        with boot(options) as machine:
            return execute(machine, what, part.works_of(run))

    def _guest(self) -> str:
        """Digest the stamp of the guest's image, and the versions of its packages."""
        image.ensure(self._space)
        return _digest(*map(digest, (image.stamp(self._space), image.listing(self._space))))

    def _made_of(self, part: Part) -> list[str]:
        """Digest each of the files that make a part's machine, and its modules' sources."""
        machine = Path(count.__file__).parent
        files = [machine / name for name in _MACHINE_FILES]
        files += count.made_of()
        files += modules.sources(self._space, part.options.get("modules_from", ()))
        files += tlb.made_of() if part.options.get("tlb") else []
        return list(map(digest, files))

    def _machine(self, options: Mapping[str, Any], files: Sequence[str]) -> str:
        """Digest a machine's options with what its files are."""
        append = parameters(self._space, options.get("append", ""))
        return _digest({**options, "append": append}, *files)


class Place:
    """Executes runs on a place of a lab, which is as it is: it is not booted for each run."""

    def __init__(self, name: str, machine: Machine, described: str = "") -> None:
        """Take a machine that is connected.

        Args:
            name: what runs are recorded under; other places may have the same.
            machine: the place.
            described: a digest of what describes it.
        """
        self.place = name
        self._described = described
        self._machine = machine
        self._kernel = machine.check("uname -r -v")
        self._says = [machine.check(command) for command in _SAYS_OF_ITSELF]

    def left_out(self, part: Part, side: Side) -> str:
        """Say what the place does not have of what a side of a part asks for."""
        return lacking(self._machine, side.build, **options_of(part, side))

    def conditions(self, part: Part, side: Side, works: Sequence[Work]) -> Conditions:
        """Describe the place as far as it can be known."""
        *_, cpus = self._says
        return Conditions(
            kernel=self._kernel,
            work=_commands(works),
            place=self.place,
            machine=_digest(options_of(part, side), self._described, self._says),
            common=_digest(part.options, self._described, cpus),
        )

    def packages(self) -> dict[str, str]:
        """Return nothing: which packages a place has is not known."""
        return {}

    def run(self, what: str, part: Part, side: Side, run: int) -> dict[str, list[Values]]:
        """Execute the works of one run on the place."""
        return execute(self._machine, what, part.works_of(run))


@contextmanager
def runner(space: Workspace, env: Path | None = None) -> Iterator[Runner]:
    """Return the emulator, or connect to the place of a labgrid environment file.

    Raises:
        MachineError: the place does not answer.
    """
    if env is None:
        yield Emulator(space)
        return
    with boot(MachineOptions(Path(), Path()), env=env) as machine:
        yield Place(env.stem, machine, digest(env))
