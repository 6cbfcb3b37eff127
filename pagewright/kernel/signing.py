"""The key that modules are signed with: made once, the user's own, and kept.

A key made for each build would make no two builds the same, as the kernel contains its public half.
"""

from __future__ import annotations

import os
from pathlib import Path

from pagewright.host.errors import HostError
from pagewright.host.files import digest
from pagewright.host.lock import lock
from pagewright.host.run import run
from pagewright.host.workspace import of_user

# An environment variable that names another key, in PEM: the private key and its certificate.
VARIABLE = "PAGEWRIGHT_MODULE_KEY"
# In a build's folder: where configurations that sign look for it (package.config).
PLACE = "certs/pagewright.pem"
# In a build's folder: the certificate that kbuild has taken of the key, and the digest of that key.
CERTIFICATE = "certs/signing_key.x509"
KEY_STAMP = ".key"
_WANTED = f'CONFIG_MODULE_SIG_KEY="{PLACE}"'

_REQUEST = """\
[req]
default_bits = 3072
distinguished_name = name
prompt = no
string_mask = utf8only
x509_extensions = extensions
[name]
CN = Pagewright kernel modules
[extensions]
basicConstraints = critical,CA:FALSE
keyUsage = digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def key() -> Path:
    """Return the user's key, made if there is none yet.

    Raises:
        HostError: the environment names a file that is not there, or the user has no home.
    """
    if given := os.environ.get(VARIABLE):
        if not Path(given).is_file():
            raise HostError(
                f"{VARIABLE} names {given}, which is not there",
                "unset it, or name a file with a private key and its certificate in PEM",
            )
        return Path(given)
    file = of_user("XDG_CONFIG_HOME", ".config") / "module-signing.pem"
    with lock(file.parent, "the key of kernel modules"):
        if not file.exists():
            _make(file)
    return file


def place(out: Path) -> None:
    """Link the key where a build's configuration expects it; do nothing if that signs nothing.

    A copy would stay behind in a folder that nobody takes for a secret.
    """
    if _WANTED not in (out / ".config").read_text().splitlines():
        return
    there, wanted = out / PLACE, key().resolve()
    if not (there.is_symlink() and there.readlink() == wanted):
        there.parent.mkdir(exist_ok=True)
        there.unlink(missing_ok=True)
        there.symlink_to(wanted)
    # kbuild compares times, which are those of the key itself. It would keep the certificate of
    # another key if this one is older, and no module could be signed.
    stamp, of_key = out / KEY_STAMP, digest(wanted)
    if not stamp.exists() or stamp.read_text() != of_key:
        (out / CERTIFICATE).unlink(missing_ok=True)
        stamp.write_text(of_key)


def _make(file: Path) -> None:
    """Make a key and its certificate, which is valid for a century."""
    request = file.with_name(".request")
    request.write_text(_REQUEST)
    fresh = file.with_name(".fresh.pem")
    fresh.unlink(missing_ok=True)
    # openssl leaves the key to the owner alone, but only while the file is not there yet.
    command = ["openssl", "req", "-new", "-x509", "-batch", "-noenc", "-utf8", "-sha256"]
    command += ["-days", "36500", "-newkey", "rsa:3072", "-config", str(request)]
    try:
        run([*command, "-keyout", fresh, "-out", fresh])
        fresh.chmod(0o600)
        fresh.rename(file)
    finally:
        request.unlink()
        fresh.unlink(missing_ok=True)
