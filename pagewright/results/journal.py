"""One line of JSON for each run of an experiment, written as the run ends.

The file of an experiment is out/VERSION/bench/NAME.jsonl. A line has the values of each round
as the guest printed them, and all that is known of what they were measured on. Nothing is
computed before it is written, so that figures can be made anew, and a bench that was killed
loses no more than the run it was in the middle of.

The packages of a guest are a line of their own, written once; runs refer to them by a digest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pagewright.host.errors import MeasureError
from pagewright.host.progress import say
from pagewright.results.experiment import Side, Values


@dataclass(frozen=True)
class Conditions:
    """What a run's values may depend on, beyond what the experiment asks for.

    A run is taken from the file, and not repeated, only if all of these are the same. The commit
    is not one of them, because most commits change nothing that is measured; what a commit can
    change of a run is its kernel, its guest, its machine or its commands, and those are here.

    Attributes:
        kernel: the version of the kernel's source package, such as 6.12.117-1; of a place,
            what uname says.
        tree: the key of the assembled tree (of base kernels, the package's version): it tells
            which hooks a kernel was made with. Empty of a place, as the next three are.
        image: a digest of the kernel's image, which also changes with the text of the
            features' own files and with the configuration.
        emulator: which one, with its version.
        guest: a digest of the guest's programs and packages.
        work: a digest of the commands; runs of one part differ in it if some of the works are
            not in all runs.
        place: the place of a lab that it ran on, or empty.
        machine: a digest of the part's options with the side's parameters, of what makes a
            machine of them, and of what is compiled for it; of a place, of the options, of the
            file that describes it, and of what it says of itself.
        common: the same but for the side's parameters; of a place, without what another kernel
            has it say. It tells whether two sides can be compared. Runs of before it was written
            down have none.
    """

    kernel: str
    tree: str = ""
    image: str = ""
    emulator: str = ""
    guest: str = ""
    work: str = ""
    place: str = ""
    machine: str = ""
    common: str = ""


@dataclass(frozen=True)
class Entry:
    """One run of one side of a part.

    Attributes:
        experiment: its name.
        part: the name of the part.
        side: the side.
        run: which run it is, from 1.
        quick: it has the sizes of --quick.
        conditions: what it was measured on.
        options: the machine's options.
        commit: the repository's commit when the bench began, with a + if there were changes since.
        time: when it ended, in UTC.
        works: by the name of a work, what each of its rounds printed.
    """

    experiment: str
    part: str
    side: Side
    run: int
    quick: bool
    conditions: Conditions
    options: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""
    time: str = ""
    works: Mapping[str, list[Values]] = field(default_factory=dict)

    def same_run(self, other: Entry) -> bool:
        """Tell whether another entry is of the same run, under the same conditions."""
        mine, theirs = (
            (e.experiment, e.part, e.side, e.run, e.quick, e.conditions) for e in (self, other)
        )
        return mine == theirs

    def displaces(self, other: Entry) -> bool:
        """Tell whether this run, which is later in the file, is shown in place of another one."""
        if (self.quick, self.conditions.place) != (other.quick, other.conditions.place):
            return True
        mine, theirs = ((e.part, e.side.label, e.run) for e in (self, other))
        return mine == theirs and not self.same_run(other)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Entry:
        """Make an entry of a line's JSON."""
        parsed = {"side": Side(**data["side"]), "conditions": Conditions(**data["conditions"])}
        return cls(**{**data, **parsed})


class Journal:
    """The file of an experiment; without a path, the entries are kept in memory only."""

    def __init__(self, path: Path | None = None, anew: bool = False) -> None:
        """Read the file, if there is one.

        A last line that was cut off when a bench was killed is ignored.

        Args:
            path: the file.
            anew: begin without the runs of the file, which is renamed when the first run of ours
                is written, and not before.

        Raises:
            MeasureError: another line is none of ours.
        """
        self.path = path
        self._in_the_way = path if anew else None
        self.entries: list[Entry] = []
        self._packages: set[str] = set()
        self._end = 0
        if path is None or anew or not path.exists():
            return
        # What is behind the last newline is a line that was not written to its end.
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        self._end = len(whole) + len(newline)
        for number, line in enumerate(whole.decode().splitlines(), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                raise MeasureError(
                    f"line {number} of {path} is no run of an experiment: {error}",
                    "take the line out, or move the file away",
                ) from error

    def find(self, wanted: Entry) -> Entry | None:
        """Return the entry of a run under the same conditions; the last one of several."""
        return next((e for e in reversed(self.entries) if e.same_run(wanted)), None)

    def keep(self, entry: Entry) -> None:
        """Write a run of the file again if others would be shown that were made since."""
        for later in reversed(self.entries):
            if later is entry:
                return
            if later.displaces(entry):
                self.append(entry, {})
                return

    def append(self, entry: Entry, packages: Mapping[str, str]) -> None:
        """Add a run, and see to it that it is on the disk.

        Args:
            entry: the run.
            packages: the guest's packages, with their versions.
        """
        lines: list[dict[str, Any]] = []
        if packages and entry.conditions.guest not in self._packages:
            lines.append({"guest": entry.conditions.guest, "packages": dict(packages)})
        lines.append(asdict(entry))
        if self._in_the_way and (aside := set_aside(self._in_the_way)):
            say(f"the runs of an earlier bench are now in {aside}")
        self._in_the_way = None
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                # It is shorter if somebody has moved it away meanwhile.
                file.truncate(min(self._end, file.tell()))
                file.write("".join(f"{json.dumps(line)}\n" for line in lines).encode())
                file.flush()
                os.fsync(file.fileno())
                self._end = file.tell()
        for line in lines:
            self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if "packages" in line:
            self._packages.add(line["guest"])
        else:
            self.entries.append(Entry.read(line))


def set_aside(path: Path) -> Path | None:
    """Rename the file of an earlier bench, so that nothing is lost, and return its new name."""
    if not path.exists() or not path.stat().st_size:
        return None
    number = 1
    while (aside := path.with_suffix(f".{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    return aside
