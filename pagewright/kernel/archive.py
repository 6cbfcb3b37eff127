"""Packages -> an apt repository, signed with a key of the user's own."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from pagewright.host import disk, packages
from pagewright.host.errors import HostError, PagewrightError
from pagewright.host.lock import lock
from pagewright.host.progress import say
from pagewright.host.run import run
from pagewright.host.scratch import scratch
from pagewright.host.workspace import Workspace
from pagewright.kernel import deb

# How the repository is called in a line of sources.list.
CODENAME = "pagewright"
# The public half of the key, for machines that use the repository.
KEYRING = "pagewright-archive-keyring.asc"

# What gpg calls the validity of keys that sign nothing any more.
_EXPIRED = "expired"
_FAULTS = {"e": _EXPIRED, "r": "revoked"}
# A key that expires within so many seconds is named: a month.
_SOON = 30 * 24 * 3600
# Without the last word the key would expire, after two or three years.
_MAKE = "gpg --quick-generate-key NAME default default never"

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
        HostError: a program is missing, or there is no such key or it has expired, or no space.
        PagewrightError: there is no package, or reprepro failed.
    """
    packages.require_packaging(packages.OF_REPOSITORY, "making an apt repository")
    target = space.out / "repository"
    # Whoever holds the lock may be making packages.
    with lock(deb.folder(space), "the packages"):
        made = sorted(deb.folder(space).glob("*.deb"))
        if not made:
            raise PagewrightError("there are no packages yet", "make some: `make deb`")
        fingerprint = _fingerprint(key)
        size = sum(file.stat().st_size for file in made) // 10**6
        disk.require(space.out, 2 * size + 10, "the apt repository")
        with scratch(space.out, "repository-") as work:
            fresh = work / "repository"
            (fresh / "conf").mkdir(parents=True)
            text = _DISTRIBUTION.format(codename=CODENAME, key=fingerprint)
            (fresh / "conf" / "distributions").write_text(text)
            # Of several versions of a package the last one stays.
            add = ["reprepro", "--basedir", str(fresh), "--silent", "includedeb", CODENAME]
            run([*add, *made], env=_terminal())
            public = run(["gpg", "--batch", "--armor", "--export", fingerprint])
            (fresh / KEYRING).write_text(public)
            # A web server reads this as another user, and so does apt, also of copies.
            run(["chmod", "-R", "go=rX", fresh])
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


@dataclass(frozen=True)
class _Key:
    """A secret key in the user's keyring.

    Attributes:
        fingerprint: its own, not that of a subkey.
        fault: why nothing can be signed with it: expired or revoked, or nothing.
        expires: when it expires, in seconds since 1970; None if it never does.
    """

    fingerprint: str
    fault: str
    expires: int | None


def _secret_keys(key: str) -> list[_Key]:
    """Return the secret keys that gpg finds by a name."""
    listing = run(["gpg", "--batch", "--with-colons", "--list-secret-keys", key], check=False)
    # The first fingerprint after each secret key is its own; the others are of its subkeys.
    pattern = r"^sec:(.*)\n(?:grp:.*\n)*fpr:+([0-9A-F]{40}):"
    found = []
    for fields, fingerprint in re.findall(pattern, listing, re.MULTILINE):
        validity, _, _, _, _, expires, *_ = fields.split(":")
        found.append(_Key(fingerprint, _FAULTS.get(validity, ""), int(expires or 0) or None))
    return found


def _fingerprint(key: str) -> str:
    """Return the fingerprint of a secret key in the user's keyring, which can sign.

    Raises:
        HostError: there is none, or more than one fits.
    """
    found = _secret_keys(key)
    # Who made a new key in the place of one that has expired may have given it the same name.
    usable = [one for one in found if not one.fault]
    if found and not usable:
        raise HostError(
            f"the secret key {found[0].fingerprint} for {key!r} is {found[0].fault}",
            _prolong(found[0])
            if found[0].fault == _EXPIRED
            else f"`{_MAKE}` makes another; servers need its public half, {KEYRING}, anew",
        )
    if len(usable) != 1:
        what = "there is no secret key" if not usable else "there is more than one secret key"
        raise HostError(
            f"{what} for {key!r} in your keyring",
            f"`gpg --list-secret-keys` shows yours; `{_MAKE}` makes one",
        )
    [one] = usable
    if one.expires is not None and one.expires < time.time() + _SOON:
        day = time.strftime("%Y-%m-%d", time.gmtime(one.expires))
        say(f"the key {one.fingerprint} expires on {day}, and then servers refuse the repository")
        say(_prolong(one))
    return one.fingerprint


def _prolong(key: _Key) -> str:
    """Return what to do about a key that expires."""
    return (
        f"`gpg --quick-set-expire {key.fingerprint} 0` lets it never expire; then make the "
        f"repository again, and give servers the new {KEYRING}"
    )
