"""What a kernel that is packaged says that it is: its version, its number, its date."""

from __future__ import annotations

import time
from dataclasses import dataclass

# How many characters `uname -r` can have: uts_len in the kernel's Makefile.
LONGEST_NAME = 64


@dataclass(frozen=True)
class Release:
    """A numbered build of a kernel, to be installed beside others.

    Attributes:
        flavour: the build's name.
        source: the version of the source package, such as 6.12.117-1.
        number: which build of it this is, from 1 on.
        commit: that of the repository, as `repository.commit` has it when the build begins.
        seconds: the date that is written into all that is made, in seconds since 1970.
    """

    flavour: str
    source: str
    number: int
    commit: str
    seconds: int

    @property
    def suffix(self) -> str:
        """What follows the point release in the kernel's version."""
        return f"-pagewright{self.number}-{self.flavour}"

    @property
    def name(self) -> str:
        """The kernel's version, as `uname -r` prints it."""
        return f"{self.source.split('-')[0]}{self.suffix}"

    @property
    def version(self) -> str:
        """The version of the packages.

        The number precedes Debian's revision: a package of a higher number is the newer one, also
        if it is made of 6.12.117-1~deb12u1, and one of a lower number of 6.12.117-1.
        """
        point, dash, revision = self.source.partition("-")
        return f"{point}+pagewright{self.number}{dash}{revision}"

    def environment(self) -> dict[str, str]:
        """Return what makes builds of one release the same, whenever they are done."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.seconds))
        return {
            "SOURCE_DATE_EPOCH": str(self.seconds),
            "KBUILD_BUILD_TIMESTAMP": f"@{self.seconds}",
            "KBUILD_BUILD_VERSION": str(self.number),
            # `uname -v` prints it, and has 64 characters in all.
            "KBUILD_BUILD_VERSION_TIMESTAMP": f"{self.source} ({day})",
        }
