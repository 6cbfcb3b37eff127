"""pagewright.guest: programs that are compiled when they must be, packages that are listed."""

import os
import re
import subprocess
from dataclasses import replace

import pytest
from empty_feature import FEATURE

from pagewright.guest import image, programs
from pagewright.guest.shell import SHORT_PAGE_LISTS
from pagewright.host import arm64_packages, disk, packages
from pagewright.host.errors import (
    BuildError,
    DiskFullError,
    HostError,
    ProgramError,
    VersionGoneError,
)
from pagewright.host.workspace import Workspace
from pagewright.kernel import build
from pagewright.kernel.source import Source
from pagewright.machine.boot import boot
from pagewright.machine.options import MachineOptions

BUILD = "base-4k"


needs_qemu = pytest.mark.skipif("config.getoption('lg_env')", reason="this test is of QEMU")


# --- Programs ------------------------------------------------------------------


@pytest.fixture
def one(tmp_path, monkeypatch):
    """A repository with one feature, which has one guest program; and no program of our own."""
    folder = tmp_path / "features" / "one" / "guest"
    folder.mkdir(parents=True)
    (folder.parent / "feature.toml").write_text(FEATURE)
    (folder / "hello.c").write_text('#include "n.h"\nint main(void) { return N; }\n')
    (folder / "n.h").write_text("#define N 3\n")
    monkeypatch.setattr(programs, "OWN", {})
    return Workspace(tmp_path, tmp_path / "cache")


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled, by name, in place of compiling it."""
    seen = []

    def compile_it(program, pristine, file):
        seen.append(program.source.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")

    monkeypatch.setattr(programs, "_compile", compile_it)
    return seen


def make(space, version="6.12.1-1"):
    return programs.ensure(space, Source(version, space.root), space.out / "programs")


def put(file, text):
    """Write a file and give it an old time, as `cp -p`, `rsync -a` and `tar -x` do."""
    file.write_text(text)
    os.utime(file, (10**9, 10**9))


def test_a_program_is_compiled_once_and_again_after_its_header_changed(one, compiled):
    header = one.root / "features" / "one" / "guest" / "n.h"
    make(one)
    make(one)
    assert compiled == ["hello.c"]
    # What is in it counts, and not its time.
    header.touch()
    make(one)
    assert compiled == ["hello.c"]
    put(header, "#define N 4\n")
    make(one)
    assert compiled == ["hello.c"] * 2


def test_a_program_that_was_put_back_is_compiled_again(one, compiled):
    source = one.root / "features" / "one" / "guest" / "hello.c"
    text = source.read_text()
    for number, then in enumerate((text, "int main(void) { return 1; }\n", text), start=1):
        put(source, then)
        make(one)
        assert compiled == ["hello.c"] * number


def test_a_program_is_compiled_again_after_a_header_for_all_changed(
    one, compiled, tmp_path, monkeypatch
):
    monkeypatch.setattr(programs, "INCLUDE", tmp_path / "include")
    programs.INCLUDE.mkdir()
    put(programs.INCLUDE / "all.h", "")
    make(one)
    make(one)
    assert compiled == ["hello.c"]
    put(programs.INCLUDE / "all.h", "int all;\n")
    make(one)
    assert compiled == ["hello.c"] * 2


def test_a_program_is_compiled_again_with_another_compiler(one, compiled, monkeypatch):
    make(one)
    monkeypatch.setattr(programs, "with_library", "of {} another one".format)
    make(one)
    make(one)
    assert compiled == ["hello.c"] * 2


def test_all_programs_are_compiled_anew_with_the_headers_of_another_release(one, compiled):
    make(one)
    make(one, "6.12.2-1")
    assert compiled == ["hello.c"] * 2
    make(one, "6.12.2-1")
    assert compiled == ["hello.c"] * 2


def test_a_change_of_release_that_was_interrupted_is_made_whole(one, compiled, monkeypatch):
    make(one)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(programs, "_compile", interrupt)
        make(one, "6.12.2-1")
    make(one)
    assert compiled == ["hello.c"] * 2


def interrupt(*_):
    raise KeyboardInterrupt


def test_each_program_has_its_place_and_its_compiler(one):
    (one.root / "features" / "one" / "guest" / "small.arm32.c").write_text("")
    found = {str(program.target): program.compiler for program in programs.listed(one)}
    assert found == {
        "usr/lib/tests/one/hello": programs.GCC,
        "usr/lib/tests/one/small": programs.GCC_ARM32,
    }


def test_our_own_programs_are_there():
    for name in programs.OWN:
        assert programs.Path(programs.__file__).with_name(name).is_file()


def test_programs_shorten_the_lists_of_pages_as_shell_commands_do():
    source = programs.Path(programs.__file__).with_name("include") / "files.h"
    path = SHORT_PAGE_LISTS.split(">")[1]
    number = SHORT_PAGE_LISTS.split()[1]
    assert f'text_write("{path}", "{number}");' in source.read_text()


def test_what_is_no_program_any_more_is_removed(one, compiled):
    left = one.out / "programs" / "usr" / "lib" / "tests" / "gone" / "program"
    left.parent.mkdir(parents=True)
    left.write_text("")
    (made,) = make(one)
    assert made.exists()
    assert not left.parent.exists()


def test_a_program_that_does_not_compile_is_named_with_what_the_compiler_says(one):
    source = one.root / "features" / "one" / "guest" / "hello.c"
    source.write_text("int main(void) { return x; }\n")
    with pytest.raises(BuildError, match=r"guest program .*one/guest/hello.c does not") as caught:
        make(one)
    assert len(caught.value.what.splitlines()) == 1
    assert re.search("hello.c:1.*x.* undeclared", caught.value.details)
    assert [file for file in (one.out / "programs").rglob("*") if file.is_file()] == []


# --- Packages ------------------------------------------------------------------


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A repository whose packages come from a false mmdebstrap; and the calls of that."""
    calls = []

    def extract(release, names, tar, keep):
        calls.append(names)
        file = tmp_path / "root" / "var" / "lib" / "packages.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("bash 5.2\n")
        subprocess.run(["tar", "-c", "-f", tar, "-C", tmp_path / "root", "."], check=True)

    monkeypatch.setattr(arm64_packages, "_extract", extract)
    return Workspace(tmp_path, tmp_path / "cache"), calls


def test_the_list_of_packages_is_beside_their_tar(store):
    space, calls = store
    fetched = arm64_packages.fetch(space, ["bash"])
    assert fetched.listing.read_text() == "bash 5.2\n"
    assert arm64_packages.read(fetched, "var/lib/packages.txt") == b"bash 5.2\n"
    assert arm64_packages.fetch(space, ["bash"]) == fetched
    assert calls == [["bash"]]


def test_a_tar_without_its_list_is_fetched_again(store):
    space, calls = store
    arm64_packages.fetch(space, ["bash"]).listing.unlink()
    arm64_packages.fetch(space, ["bash"])
    assert len(calls) == 2


def test_lists_that_were_not_used_for_long_leave_the_cache(store, monkeypatch, capsys):
    space, _ = store
    for tar in (store_of(space) / f"bookworm-{number}.tar" for number in range(20)):
        tar.parent.mkdir(parents=True, exist_ok=True)
        tar.touch()
        tar.with_suffix(".packages.txt").touch()
    fetched = arm64_packages.fetch(space, ["bash"])
    tars = sorted(store_of(space).glob("*.tar"))
    assert len(tars) == arm64_packages._KEEP_LISTS
    assert fetched.tar in tars
    assert sorted(store_of(space).glob("*.txt")) == [
        tar.with_suffix(".packages.txt") for tar in tars
    ]
    assert "bookworm-" in capsys.readouterr().err


def store_of(space):
    return space.cache / "guest"


def test_a_file_that_no_package_has_is_named(store):
    space, _ = store
    with pytest.raises(BuildError, match="none of the packages fetched has etc/nothing"):
        arm64_packages.read(arm64_packages.fetch(space, ["bash"]), "etc/nothing")


def test_the_list_of_the_image_names_its_packages_with_versions(space):
    image.ensure(space)
    lines = image.listing(space).read_text().splitlines()
    names = [line.split(" ")[0] for line in lines]
    assert all(len(line.split(" ")) == 2 for line in lines)
    assert lines == sorted(lines)
    assert set(image.PACKAGES) <= set(names)


@pytest.fixture
def images(store, monkeypatch):
    """What is made of the false packages, one entry for each image."""
    space, _ = store
    made = []

    def make_image(tar, overlay, file):
        made.append(tar)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")

    monkeypatch.setattr(image, "_make_image", make_image)
    monkeypatch.setattr(image.source, "ensure", lambda space: Source("6.12.1-1", space.root))
    monkeypatch.setattr(image.programs, "ensure", lambda space, pristine, folder: [])
    return space, made


def test_the_image_is_made_anew_when_the_way_of_making_it_changed(images, monkeypatch, tmp_path):
    space, made = images
    module = tmp_path / "image.py"
    monkeypatch.setattr(image, "__file__", str(module))
    for text, number in (("SPARE_MB = 1", 1), ("SPARE_MB = 1", 1), ("SPARE_MB = 2", 2)):
        module.write_text(text)
        image.ensure.__wrapped__(space)
        assert len(made) == number


def test_without_space_nothing_is_fetched(store, monkeypatch):
    space, calls = store
    monkeypatch.setattr(disk, "free", lambda path: 10)
    with pytest.raises(DiskFullError, match=r"packages of arm64 needs .* MB, and .* has 10 MB"):
        arm64_packages.fetch(space, ["bash"])
    assert calls == []


@pytest.mark.parametrize(
    ("said", "gone"),
    [("E: Version '1' for 'bash' was not found", True), ("E: Unable to locate package b", False)],
)
def test_a_version_that_the_archive_has_dropped_is_an_error_of_its_own(
    tmp_path, monkeypatch, said, gone
):
    def run(command, **_):
        raise ProgramError("mmdebstrap failed with status 1", details=said)

    monkeypatch.setattr(arm64_packages, "run", run)
    monkeypatch.setattr(arm64_packages, "_allowed", lambda command: command)
    with pytest.raises(ProgramError, match=re.escape(said)) as error:
        arm64_packages._extract("trixie", ["bash=1"], tmp_path / "tar", False)
    assert isinstance(error.value, VersionGoneError) == gone


def commands_of(monkeypatch, user, namespaces):
    """How mmdebstrap is started for a user, and what was tried first."""
    tried = []

    def run(command, **_):
        tried.append(command[0])
        if not namespaces:
            raise ProgramError("no")
        return ""

    monkeypatch.setattr(arm64_packages.os, "geteuid", lambda: user)
    monkeypatch.setattr(arm64_packages, "run", run)
    monkeypatch.setattr(packages, "as_root", lambda command, *_: ["sudo", *command])
    return arm64_packages._allowed(["mmdebstrap", "x"]), tried


def test_root_needs_no_user_namespace(monkeypatch):
    assert commands_of(monkeypatch, 0, False) == (["mmdebstrap", "x"], [])


def test_a_user_needs_sudo_only_without_user_namespaces(monkeypatch):
    there = commands_of(monkeypatch, 1000, True)
    assert there == (["mmdebstrap", "--mode=unshare", "x"], ["unshare"])
    assert commands_of(monkeypatch, 1000, False)[0] == ["sudo", "mmdebstrap", "x"]


def test_without_unshare_sudo_is_asked_for(monkeypatch):
    def run(command, **_):
        raise HostError("unshare is not installed")

    monkeypatch.setattr(arm64_packages.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(arm64_packages, "run", run)
    monkeypatch.setattr(packages, "as_root", lambda command, *_: ["sudo", *command])
    assert arm64_packages._allowed(["mmdebstrap"])[0] == "sudo"


# --- The first process -----------------------------------------------------------


@pytest.fixture(scope="module")
def up(shared_machine):
    return shared_machine(BUILD)


@needs_qemu
def test_all_that_the_kernel_has_is_mounted(up):
    table = [line.split()[:3] for line in up.check("cat /proc/mounts").splitlines()]
    mounted = {place: kind for _, place, kind in table}
    known = {line.split()[-1] for line in up.check("cat /proc/filesystems").splitlines()}
    expected = {
        "/proc": "proc",
        "/sys": "sysfs",
        "/dev": "devtmpfs",
        "/dev/pts": "devpts",
        "/dev/shm": "tmpfs",
        "/run": "tmpfs",
        "/tmp": "tmpfs",
        "/sys/kernel/debug": "debugfs",
        "/sys/kernel/tracing": "tracefs",
        "/sys/fs/cgroup": "cgroup2",
        "/dev/hugepages": "hugetlbfs",
    }
    wanted = {place: kind for place, kind in expected.items() if kind in known}
    assert {place: mounted.get(place) for place in wanted} == wanted
    modes = up.check("stat -c %a /tmp /dev/shm /run /dev/ptmx").split()
    assert modes == ["1777", "1777", "755", "666"]


@needs_qemu
def test_nothing_went_wrong_in_the_first_process(up):
    said = [line for line in up.console().splitlines() if "guest-init" in line]
    assert len(said) == 1
    assert said[0].endswith("guest-init: ready, shell on hvc0")


@needs_qemu
def test_the_environment_is_a_root_shells(up):
    names = "$PATH|$HOME|$LANG|$TERM|$PS1|$(pwd)|$(uname -n)|$(id -un)"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    expected = f"{path}|/root|C.UTF-8|dumb|guest# |/root|guest|root"
    assert up.check(f'echo "{names}"') == expected


@needs_qemu
def test_the_shell_has_a_controlling_terminal(up):
    # "?" is what ps says of processes without one.
    assert up.check("ps -o tty= -p $$").strip() == "hvc0"


@needs_qemu
def test_commands_have_files_and_ports_by_name(up):
    assert up.check("readlink /dev/fd /dev/command-output").split()[0] == "/proc/self/fd"
    assert up.check("bash -c 'cat <(echo one)'") == "one"
    assert up.check("cat /sys/class/virtio-ports/*/name") == "command-output"


@needs_qemu
def test_the_loopback_interface_is_up(up):
    assert "127.0.0.1/8" in up.check("busybox ip -4 address show dev lo")


@needs_qemu
def test_a_file_that_the_shell_left_open_does_not_reach_commands(up):
    assert up.check("ls /proc/$$/fd").split() == ["0", "1", "2"]


@pytest.fixture(scope="module")
def with_network(shared_machine):
    """A machine with a network card, which is asked to serve SSH."""
    card = ("-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=")
    return shared_machine(BUILD, append="guest.ssh", extra_args=card)


@needs_qemu
def test_a_network_card_has_the_address_of_qemus_network(with_network):
    if with_network.run("ls /sys/class/net/eth0").status != 0:
        pytest.skip("this kernel has no driver for the card")
    assert "10.0.2.15/24" in with_network.check("busybox ip -4 address show dev eth0")
    assert "default via 10.0.2.2 dev eth0" in with_network.check("busybox ip route")


@needs_qemu
def test_ssh_is_served_if_asked_for(with_network, up):
    assert with_network.check("pgrep -x dropbear")
    assert up.run("pgrep -x dropbear").status == 1


@pytest.mark.full
@needs_qemu
def test_ssh_that_cannot_be_served_is_told(space, tmp_path):
    broken = tmp_path / "usr" / "sbin" / "dropbear"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    options = MachineOptions(build.ensure(space, BUILD).image, image.ensure(space))
    with boot(replace(options, append="guest.ssh", overlay=tmp_path)) as machine:
        said = [line for line in machine.console().splitlines() if "guest-init" in line]
    assert len(said) == 2
    assert said[0].endswith("guest-init: guest.ssh was given, but dropbear could not be started")


@pytest.mark.full
@needs_qemu
def test_a_shell_that_ends_is_started_anew(space):
    with boot(MachineOptions(build.ensure(space, BUILD).image, image.ensure(space))) as machine:
        before = machine.check("ps -o pid= --ppid 1 -C sh").split()
        machine._shell.console.sendline("exit")
        machine._shell.console.expect("guest# ", timeout=60)
        target = machine._shell.target
        target.deactivate(machine._shell)
        target.activate(machine._shell)
        assert machine.check("ps -o tty= -p $$").strip() == "hvc0"
        assert machine.check("ps -o pid= --ppid 1 -C sh").split() != before
