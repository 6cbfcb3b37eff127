"""Packages -> an apt repository, signed with a key of the user's own."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pagewright.host import disk
from pagewright.host.errors import HostError, PagewrightError
from pagewright.host.lock import lock
from pagewright.host.run import run
from pagewright.host.scratch import scratch
from pagewright.host.workspace import Workspace
from pagewright.kernel import deb

# How the repository is called in a line of sources.list.
CODENAME = "pagewright"
# The public half of the key, for machines that use the repository.
KEYRING = "pagewright-archive-keyring.asc"

_DISTRIBUTION = """\
Origin: Pagewright
Label: Pagewright
Codename: {codename}
Architectures: arm64
Components: main
Description: Linux with the features of Pagewright, and tools
SignWith: {key}
"""


def make(space: Workspace, key: str) -> Path:
    """Make an apt repository of all packages that were made, or replace the one that is there.

    Args:
        space: the repository with the source.
        key: a secret key in the user's keyring, as gpg takes it: a fingerprint, or an address.

    Returns:
        The folder to be served.

    Raises:
        HostError: a program is missing, or there is no such key, or no space.
        PagewrightError: there is no package, or reprepro failed.
    """
    deb.require_programs()
    packages = sorted(deb.folder(space).glob("*.deb"))
    if not packages:
        raise PagewrightError("there are no packages yet", "make some: `make deb`")
    fingerprint = _fingerprint(key)
    target = space.out / "repository"
    size = sum(file.stat().st_size for file in packages) // 10**6
    disk.require(space.out, 2 * size + 10, "the apt repository")
    with (
        lock(deb.folder(space), "the packages"),
        scratch(space.out, "repository-") as work,
    ):
        fresh = work / "repository"
        (fresh / "conf").mkdir(parents=True)
        text = _DISTRIBUTION.format(codename=CODENAME, key=fingerprint)
        (fresh / "conf" / "distributions").write_text(text)
        # Of several versions of a package the last one stays.
        add = ["reprepro", "--basedir", str(fresh), "--silent", "includedeb", CODENAME]
        run([*add, *packages], env=_terminal())
        public = run(["gpg", "--batch", "--armor", "--export", fingerprint])
        (fresh / KEYRING).write_text(public)
        if target.exists():
            target.rename(work / "old")
        fresh.rename(target)
    return target


def _terminal() -> dict[str, str]:
    """Return what tells gpg where to ask for a passphrase, for the environment of a program.

    As `run` has it, a program has no terminal of its own. Without this variable gpg would find none
    to ask at, and where there is no desktop, as over ssh, the signature would fail.
    """
    if os.environ.get("GPG_TTY") or not os.isatty(0):
        return {}
    return {"GPG_TTY": os.ttyname(0)}


def _fingerprint(key: str) -> str:
    """Return the fingerprint of a secret key in the user's keyring.

    Raises:
        HostError: there is none, or more than one fits.
    """
    listing = run(["gpg", "--batch", "--with-colons", "--list-secret-keys", key], check=False)
    # The first fingerprint after each secret key is its own; the others are of its subkeys.
    found = re.findall(r"^sec:.*\n(?:grp:.*\n)*fpr:+([0-9A-F]{40}):", listing, re.MULTILINE)
    if len(found) != 1:
        what = "there is no secret key" if not found else "there is more than one secret key"
        raise HostError(
            f"{what} for {key!r} in your keyring",
            "`gpg --list-secret-keys` shows yours; `gpg --quick-generate-key NAME` makes one",
        )
    return str(found[0])
