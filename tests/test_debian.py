"""The disk of a whole Debian: what is made of packages before anything of arm64 runs.

test_install.py boots it.
"""

from __future__ import annotations

import pytest

from pagewright.guest import debian
from pagewright.host.run import run


def make_package(folder, work, name, *fields, preinst=""):
    """Make a package of arm64 with one file, which belongs to the group with the number 42."""
    (work / "DEBIAN").mkdir(parents=True)
    lines = [f"Package: {name}", "Version: 1", "Architecture: arm64", *fields]
    lines += ["Maintainer: nobody <nobody@localhost>", "Description: a package of a test"]
    (work / "DEBIAN" / "control").write_text("\n".join(lines) + "\n")
    if preinst:
        (work / "DEBIAN" / "preinst").write_text(preinst)
        (work / "DEBIAN" / "preinst").chmod(0o755)
    (work / "usr" / "bin").mkdir(parents=True)
    (work / "usr" / "bin" / name).write_text(name)
    (work / "usr" / "share" / "doc").mkdir(parents=True)
    (work / "usr" / "share" / "doc" / name).write_text("read me")
    commands = f"chgrp 42 {work}/usr/bin/{name} && dpkg-deb --build {work} {folder}"
    run(["fakeroot", "sh", "-c", commands])


@pytest.fixture
def root(tmp_path):
    """Make a root with packages to unpack."""
    folder = tmp_path / "root"
    for name in ("debs", "var/lib/dpkg", "var/log"):
        (folder / name).mkdir(parents=True)
    (folder / "var" / "lib" / "dpkg" / "status").touch()
    script = "#!/bin/sh\ntouch /preinst-ran\nexit 1\n"
    make_package(folder / "debs", tmp_path / "a", "plain", "Depends: not-there")
    make_package(folder / "debs", tmp_path / "b", "first", preinst=script)
    make_package(folder / "debs", tmp_path / "c", "second", "Multi-Arch: same", preinst=script)
    return folder


def test_packages_of_arm64_are_unpacked_without_their_scripts(root, tmp_path):
    owners = tmp_path / "owners"
    debian._unpack(root, owners, tmp_path / "work")
    state = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show"]
    assert run([*state, "--showformat=${Package} ${db:Status-Status}\n"]).split("\n") == [
        *("first unpacked", "plain unpacked", "second unpacked", "")
    ]
    assert (root / "usr" / "bin" / "second").read_text() == "second"
    # Those of the root that is made of it, as mke2fs sees them.
    seen = ["fakeroot", "-i", owners, "stat", "-c", "%u:%g"]
    assert run([*seen, root / "usr" / "bin" / "second"]).strip() == "0:42"
    assert not (root / "usr" / "share" / "doc" / "second").exists()
    assert not (root / "debs").exists()


def test_scripts_that_did_not_run_are_where_dpkg_keeps_them(root, tmp_path):
    debian._unpack(root, tmp_path / "owners", tmp_path / "work")
    info = root / "var" / "lib" / "dpkg" / "info"
    scripts = {file.name: file for file in info.glob("*.preinst")}
    assert sorted(scripts) == ["first.preinst", "second:arm64.preinst"]
    assert all(file.stat().st_mode & 0o777 == 0o755 for file in scripts.values())
    # The second stage takes their names for those of packages.
    assert {file.name for file in info.glob("second*.list")} == {"second:arm64.list"}
