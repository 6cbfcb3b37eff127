"""Packages of a kernel in a whole Debian: installed, upgraded, removed, and what may go wrong.

The system is made of Debian's packages and boots through UEFI and GRUB. Its kernel at first is
Debian's own. The kernel of the packages has a small configuration (system-4k); the packages
differ in nothing else from those that `pagewright deb` makes as a rule. With --build FLAVOUR it is
another flavour, such as cloud-arm64.

What the servers say stays in out/VERSION/install-logs, also of a test that passes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from contextlib import contextmanager

import documents
import pytest

import conftest
from pagewright.host import workspace
from pagewright.host.errors import MachineError
from pagewright.host.files import digest
from pagewright.host.run import run
from pagewright.kernel import archive, deb
from pagewright.kernel.recipes import DEFAULT_BUILD
from pagewright.machine import evidence, server
from pagewright.machine.options import LEVEL_0_CPU

pytestmark = [pytest.mark.full, pytest.mark.long(30)]

SPACE = workspace.find()
SMALL_FLAVOUR = "system-4k"
# Those that an administrator has made, of the same numbers perhaps, stay as they are: servers may
# have installed them, and `make repo` would publish ours.
PACKAGES = SPACE.out / "install-packages"
DEBIANS_KERNEL = r"6\.\S+-cloud-arm64"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -y -q"
# Where the server finds what it is given.
FILES = "/root/files"
KEY = "me@pagewright.test"
GPG = ["gpg", "--batch", "--quiet", "--pinentry-mode=loopback", "--passphrase="]
# What brings the next kernel of Debian's to the server, and one that is newer than all of Debian's.
DEBIANS_METAPACKAGE = "linux-image-cloud-arm64"
NEWER = f"""\
Package: {DEBIANS_METAPACKAGE}
Version: 99
Architecture: arm64
Section: kernel
Priority: optional
Maintainer: me <{KEY}>
Description: stands in for that of Debian's next kernel
"""
# Where the unit that exports metrics writes them.
METRICS = "/var/lib/prometheus/node-exporter/pagewright.prom"
# How a kernel refuses a module with Secure Boot if it does not know the key, and what it says then.
# With IMA_ARCH_POLICY, as Debian configures it, it demands signatures before it asks lockdown.
REFUSALS = {
    "Operation not permitted": "Lockdown: modprobe: unsigned module loading is restricted",
    "Key was rejected by service": "Loading of module with unavailable key is rejected",
}
# What an emulated server takes for the hooks of a kernel on a busy computer, in seconds.
LONG = 3600


@pytest.fixture(scope="module")
def flavour(request):
    chosen = request.config.getoption("--build")
    return SMALL_FLAVOUR if chosen == DEFAULT_BUILD else chosen


@pytest.fixture(scope="module")
def packages(flavour):
    """Make the packages of a build; return the folder's files by the number of the build."""
    return {1: deb.make(SPACE, flavour, 1, for_tests=True, target=PACKAGES)}


@pytest.fixture(scope="module")
def both(flavour, packages):
    """Make those of the next build, too."""
    return {**packages, 2: deb.make(SPACE, flavour, 2, for_tests=True, target=PACKAGES)}


@pytest.fixture(scope="module")
def repository(both, tmp_path_factory):
    """Make a repository of the packages, with a key in a keyring of its own."""
    space = dataclasses.replace(SPACE, root=tmp_path_factory.mktemp("repository"))
    deb.folder(space).mkdir(parents=True)
    for file in (file for files in both.values() for file in files):
        shutil.copy(file, deb.folder(space))
    newer = tmp_path_factory.mktemp("newer")
    (newer / "DEBIAN").mkdir()
    (newer / "DEBIAN" / "control").write_text(NEWER)
    run(["dpkg-deb", "--build", newer, deb.folder(space)])
    # gpg's agent has a socket there, whose name may have 108 characters.
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNUPGHOME", str(home))
        run([*GPG, "--quick-generate-key", KEY, "ed25519"])
        yield archive.make(space, KEY)
        run(["gpgconf", "--kill", "gpg-agent"])


def release(packages, number):
    names = [file.name for file in packages[number]]
    found = [re.match(r"linux-image-(\d.*?)_", name) for name in names]
    return next(match[1] for match in found if match)


@pytest.fixture
def debian(request, packages, tmp_path):
    """Return a server as it is after the installation of Debian, with our packages at hand.

    It is a Debian 13 unless the test is parametrized with another release.
    """
    return provided(server.new(SPACE, tmp_path, getattr(request, "param", "trixie")), packages)


on_both_releases = pytest.mark.parametrize("debian", ["trixie", "bookworm"], indirect=True)


@pytest.fixture
def secure(packages, tmp_path):
    """Return a server with Secure Boot, which has the keys that servers are sold with."""
    return provided(server.new(SPACE, tmp_path, "trixie", secure_boot=True), packages)


def provided(made, packages):
    """Give a server the packages and what else the tests want there."""
    for number, files in packages.items():
        (made.files / str(number)).mkdir()
        for file in files:
            shutil.copy(file, made.files / str(number))
    shutil.copytree(SPACE.root / "tests" / "dkms", made.files / "dkms")
    return made


@pytest.fixture(autouse=True)
def logs(request):
    """Keep what the servers of a test say, also if it passes; return the folder they write to."""
    own = conftest.own_logs(request.node)
    yield own
    # `pagewright logs` takes each folder among the logs for that of a test that failed.
    kept = request.config.getoption("logs").with_name("install-logs") / request.node.name
    shutil.rmtree(kept, ignore_errors=True)
    for machine in own.glob("*"):
        evidence.copy(machine, kept / machine.name)


@contextmanager
def booted(debian, **options):
    """Boot a server for some commands; no complaint of the kernel may follow them."""
    with debian.boot(**options) as guest:
        guest.check("systemctl is-system-running --wait || true", LONG)
        yield guest
        if not guest.broken:
            assert guest.warnings() == ""


def shut_down(guest, command="systemctl reboot"):
    """Have a server end, which cannot be asked for complaints then."""
    assert guest.warnings() == ""
    server.shut_down(guest, command)


def kernel_of(guest):
    return guest.check("uname -r")


def is_debians(guest):
    return re.fullmatch(DEBIANS_KERNEL, kernel_of(guest))


def install(guest, number, what="linux-image-[0-9]*"):
    """Try to install a build's packages; return how apt-get ended."""
    return guest.run(f"{APT} install {FILES}/{number}/{what}.deb", LONG)


def script_of(section, **names):
    """Return all that a section of docs/install.md has for the server, with here-documents.

    Args:
        section: the heading.
        names: what the commands' placeholders stand for.
    """
    text = documents.section("install.md", section)
    script = "".join(documents.scripts(text, server=True))
    # Nobody is there to answer questions, and what apt only warns of is an error here.
    script = re.sub(r"^apt (?=install|purge)", f"{APT} ", script, flags=re.MULTILINE)
    script = script.replace("apt update", f"{APT} --error-on=any update")
    for name, value in names.items():
        script = script.replace(name, value)
    return script


def documented(section, **names):
    """Return these commands as a script, which ends before the reboot: that is the test's."""
    script, reboot, _ = f"set -e\n{script_of(section, **names)}".partition("\nreboot\n")
    assert reboot, script
    return script


def add_repository(guest, flavour):
    """Have a server use the repository, as docs/install.md has it; return what installs of it."""
    section = "A repository for several servers"
    guest.check(f"cp -r {FILES}/repository /srv")
    # The key comes from the same computer here.
    _, copies = documents.scripts(documents.section("install.md", section))
    for name, there in {"scp ": "cp ", "out/6.12/": "/srv/", "root@SERVER:": ""}.items():
        copies = copies.replace(name, there)
    guest.check(copies)
    # The server has no network, and so none of Debian's archives.
    guest.check("rm -f /etc/apt/sources.list")
    names = {"ADDRESS": "file:///srv/repository", "pagewright-cloud-arm64": f"pagewright-{flavour}"}
    script = script_of(section, **names)
    before, install, packages = script.partition(f"{APT} install ")
    guest.check(f"set -e\n{before}", LONG)
    return install + packages


def upgrade(guest):
    """Have apt install what is new in the repository, as docs/install.md has it."""
    return guest.run(f"{APT.replace('apt-get', 'apt')} upgrade", LONG)


def held_back(guest):
    """Tell whether apt would leave Debian's metapackage as it is, of which there is a newer one."""
    return f"Inst {DEBIANS_METAPACKAGE} " not in guest.check(f"{APT} --simulate upgrade", LONG)


def entries(guest):
    """Return the kernels of GRUB's menu, in its order."""
    menu = guest.check("cat /boot/grub/grub.cfg")
    return list(dict.fromkeys(re.findall(r"^\s*linux\s+/vmlinuz-(\S+)", menu, re.MULTILINE)))


def nothing_left(guest):
    """Nothing is left of all packages, but for what the test has brought."""
    # apt forgets then what it has read of a repository that is gone.
    guest.check(f"{APT} update", LONG)
    but = f"-path {FILES} -prune -o -path /srv/repository -prune -o"
    left = guest.check(f"find / /boot /boot/efi -xdev {but} -name '*pagewright*' -print", LONG)
    assert left == ""


def no_trace_of(guest, name):
    """Tell whether nothing is left of a kernel."""
    places = f"/boot/*{name}* /usr/lib/modules/{name} /var/lib/initramfs-tools/{name}"
    return guest.run(f"ls -d {places}").output.count("No such file") == 3


def all_on(guest, name, level_2=True, but=()):
    """The tools say that all features of a kernel are on, but for some; return them by name.

    That is so with processors of all kinds; those with level 2 of FEAT_BBM the tools know as such.
    """
    result = guest.run("pagewright status --json", LONG)
    status = json.loads(result.output)
    features = {feature["name"]: feature for feature in status["features"]}
    states = {name: feature["state"] for name, feature in features.items()}
    wanted = {feature.name: "on" for feature in SPACE.features()}
    assert states == {**wanted, **dict.fromkeys(but, "off")}, result.output
    assert result.status == (3 if but else 0)
    machine = status["machine"]
    assert machine["release"] == name
    assert {model["bbm_level_2"] for model in machine["cpus"]["models"]} == {level_2}
    return features


def all_on_without_level_2(guest, name):
    """The tools say that all features are on, and that CPUs are paused for what level 2 allows."""
    features = all_on(guest, name, level_2=False)
    linear_map, hvo = features["linear-map"], features["hugetlb-vmemmap"]
    assert linear_map["mode"] == "blocks"
    assert linear_map["why"].startswith("All other CPUs are paused"), linear_map
    assert "Cortex-A76 r4p1, is not known to be one" in linear_map["why"]
    assert hvo["mode"] == "seamless"
    assert hvo["why"].startswith("CPUs are paused only when"), hvo
    assert all(feature["why"] for feature in features.values())


def exported(guest):
    """Have systemd start the unit that exports metrics; it says what `pagewright status` says."""
    # An emulated server may take longer than the unit gives it.
    slow = "/etc/systemd/system/service.d"
    guest.check(f"mkdir -p {slow} && printf '[Service]\\nTimeoutStartSec=1h\\n' >{slow}/slow.conf")
    guest.check("systemctl daemon-reload", LONG)
    # The folder belongs to the exporter, and root is another user. Debian 12's package gives it to
    # root, and the folder above to the exporter.
    guest.check(f"install -d -o nobody -g nogroup -m 755 $(dirname {METRICS})")
    # The unit runs once, so that this waits for its end and fails with it.
    started = guest.run("systemctl start pagewright-export.service", LONG)
    said = "journalctl --no-pager --unit=pagewright-export.service"
    assert started.status == 0, guest.run(said).output
    assert guest.check(f"stat -c '%a %U' {METRICS}") == "644 root", guest.run(said).output
    # Whoever the exporter runs as can read it.
    text = guest.check(f"setpriv --reuid nobody --clear-groups cat {METRICS}")
    pattern = r'^pagewright_feature_on\{feature="([\w-]+)",mode="(.*)"\} (\S+)$'
    found = {name: (mode, value) for name, mode, value in re.findall(pattern, text, re.MULTILINE)}
    status = json.loads(guest.run("pagewright status --json", LONG).output)
    assert found == {
        feature["name"]: (feature["mode"], str(int(feature["state"] == "on")))
        for feature in status["features"]
    }
    assert f'pagewright_info{{release="{kernel_of(guest)}",architecture="aarch64"}} 1' in text


def locked_in(guest):
    """What the unit starts can write to its folder, and not to disks or control groups, as root."""
    folder = METRICS.rpartition("/")[0]
    guest.check(f"install -d -o nobody -g nogroup -m 755 {folder}")
    disk = guest.check("findmnt --noheadings --output SOURCE /")
    files = f"{disk} /sys/fs/cgroup/cgroup.procs /etc/hostname"
    tries = f"for file in {files}; do (: >>$file) && echo $file; done; : </dev/kmsg && echo log"
    guest.check(f"echo '({tries}) >{folder}/tries' >/run/tries")
    unit = "pagewright-export.service"
    instead = f"/run/systemd/system/{unit}.d"
    command = "[Service]\\nExecStart=\\nExecStart=/bin/sh /run/tries\\n"
    guest.check(f"mkdir -p {instead} && printf '{command}' >{instead}/tries.conf")
    guest.check(f"systemctl daemon-reload && systemctl start {unit}", LONG)
    assert guest.check(f"cat {folder}/tries") == "log"
    guest.check(f"rm -r {instead} {folder}/tries /run/tries && systemctl daemon-reload", LONG)


def exported_each_minute(guest):
    """The timer is off until an administrator enables it, as tools/README.md says, and then runs.

    It takes the metrics that the unit has written before.
    """
    timer = "pagewright-export.timer"
    said = guest.run(f"systemctl is-enabled {timer}; systemctl is-active {timer}").output
    assert said.split() == ["disabled", "inactive"]
    guest.check(f"rm {METRICS}")
    guest.check(f"systemctl enable --now {timer}", LONG)
    for _ in range(2):
        guest.check(f"timeout 900 sh -c 'until test -e {METRICS}; do sleep 1; done'", LONG)
        guest.check(f"rm {METRICS}")


def test_lintian_has_nothing_to_say(flavour, both):
    made = [f"*-{flavour}_*pagewright{number}-*.changes" for number in both]
    for name in (*made, f"pagewright-tools_{deb.tools(SPACE).version}_*.changes"):
        changes = next(PACKAGES.glob(name))
        # The first two are errors: our address reaches nobody. Packages that one makes for oneself
        # need none. The third is a warning: such a name may not fit on a CD, and these go on none.
        but = "bogus-mail-host,bogus-mail-host-in-debian-changelog,package-has-long-file-name"
        run(["lintian", "--fail-on=error,warning", f"--suppress-tags={but}", changes])


def test_built_again_elsewhere_the_packages_are_the_same(flavour, packages, tmp_path, monkeypatch):
    # The compiler shall work again, not its cache; only the source and the key are shared.
    monkeypatch.setenv("CCACHE_RECACHE", "1")
    generated = shutil.ignore_patterns("out", ".venv", ".*_cache", "__pycache__")
    elsewhere = tmp_path / "another" / "folder"
    shutil.copytree(SPACE.root, elsewhere, symlinks=True, ignore=generated)
    again = deb.make(dataclasses.replace(SPACE, root=elsewhere), flavour, 1, for_tests=True)
    first = {file.name: digest(file) for file in packages[1]}
    assert {file.name: digest(file) for file in again} == first


@on_both_releases
def test_install_upgrade_and_remove(flavour, both, repository, debian):
    first, second = release(both, 1), release(both, 2)
    shutil.copytree(repository, debian.files / "repository")
    with booted(debian) as guest:
        assert is_debians(guest)
        debians = kernel_of(guest)
        server.bring(guest, FILES)
        # The kernel, the headers, their metapackages and the tools, as the page names them.
        typed = documented("Install", RELEASE=first, FLAVOUR=flavour)
        guest.check(f"cd {FILES}/1\n{typed}", LONG)
        assert entries(guest) == [first, debians]
        # They go by themselves one day, and not yet: metapackages depend on them.
        ours = {f"linux-image-{first}", f"linux-headers-{first}"}
        assert set(guest.check(f"apt-mark showauto {' '.join(ours)}").split()) == ours
        leaving = guest.check(f"{APT} --simulate autoremove", LONG)
        assert not [name for name in ours if f"Remv {name} " in leaving], leaving
        # Debian's next kernel is not to be the default.
        assert DEBIANS_METAPACKAGE in guest.check(script_of("Keep it the default"))
        assert guest.check("apt-mark showhold") == DEBIANS_METAPACKAGE
        # This kernel has what systemd needs to keep units from devices.
        locked_in(guest)
        # The tools say so on a kernel without the features.
        assert guest.run("pagewright status", LONG).status == 4
        shut_down(guest)

    with booted(debian) as guest:
        assert kernel_of(guest) == first
        all_on(guest, first)
        exported(guest)
        exported_each_minute(guest)
        assert guest.check("modinfo -F signer dummy", LONG) == "Pagewright kernel modules"
        # The kernel has nothing to say against the module: it is signed with the kernel's key.
        assert guest.check("modprobe dummy && cat /sys/module/dummy/taint", LONG) == ""
        dkms = f"cp -r {FILES}/dkms /usr/src/hello-1 && dkms install hello/1 && modprobe hello"
        guest.check(dkms, LONG)
        assert "hello: counted 1" in guest.check("dmesg")
        # Others than DKMS ask for it, to know where their modules go.
        assert guest.check(f"make -sC /lib/modules/{first}/build kernelrelease") == first
        assert guest.warnings() == ""
        add_repository(guest, flavour)
        result = upgrade(guest)
        assert result.status == 0, result.output
        assert entries(guest) == [second, first, debians]
        assert held_back(guest)
        shut_down(guest)

    # As most processors of servers, this one lacks level 2 of FEAT_BBM.
    with booted(dataclasses.replace(debian, cpu=LEVEL_0_CPU)) as guest:
        assert kernel_of(guest) == second
        all_on_without_level_2(guest, second)
        # The metapackage brought the headers, and DKMS compiled it for this kernel when it came.
        assert guest.check(f"dpkg-query -W -f '${{db:Status-Status}}' linux-headers-{second}") == (
            "installed"
        )
        guest.check("modprobe hello", LONG)
        assert guest.warnings() == ""
        # What its timer writes is of no package.
        guest.check(f"timeout 900 sh -c 'until test -e {METRICS}; do sleep 1; done'", LONG)
        # As `apt autoremove` does one day: it leaves the package's scripts.
        guest.check(f"{APT} remove linux-image-{first}", LONG)
        script, reboot, then = script_of("Go back").partition("reboot\n")
        assert reboot
        assert held_back(guest)
        guest.check(then)
        assert not held_back(guest)
        guest.check(f"set -e\n{script}", LONG)
        nothing_left(guest)
        assert entries(guest) == [debians]
        shut_down(guest)

    with booted(debian) as guest:
        assert kernel_of(guest) == debians
        assert guest.check("dpkg --audit") == ""


def fill_boot(guest):
    """Leave 5 MB of /boot, in which no kernel has space."""
    free = int(guest.check("df -k --output=avail /boot | tail -1"))
    guest.check(f"fallocate -l {free - 5000}K /boot/filler")


@on_both_releases
def test_a_full_boot_changes_nothing(flavour, both, repository, debian):
    first, second = release(both, 1), release(both, 2)
    shutil.copytree(repository, debian.files / "repository")
    with booted(debian) as guest:
        debians = kernel_of(guest)
        server.bring(guest, FILES)
        fill_boot(guest)
        result = install(guest, 1)
        assert result.status != 0
        assert "MiB are needed" in result.output
        assert no_trace_of(guest, first)
        assert entries(guest) == [debians]
        shut_down(guest)

    with booted(debian) as guest:
        assert kernel_of(guest) == debians
        guest.check("rm /boot/filler")
        # The kernel and its metapackage.
        result = install(guest, 1, "linux-image-*")
        assert result.status == 0, result.output
        guest.check(script_of("Keep it the default"))
        from_repository = add_repository(guest, flavour)
        fill_boot(guest)
        result = upgrade(guest)
        assert result.status != 0
        assert "MiB are needed" in result.output
        assert no_trace_of(guest, second)
        assert entries(guest) == [first, debians]
        # What the message says to do is possible.
        assert guest.check("dpkg --audit") == ""
        for command in (f"purge linux-image-{first}", "autoremove"):
            guest.check(f"{APT} --simulate {command}", LONG)
        guest.check("rm /boot/filler")
        # Whoever has a repository needs no file of a package.
        guest.check(from_repository, LONG)
        assert entries(guest) == [second, first, debians]
        assert guest.run("pagewright status", LONG).status == 4


@on_both_releases
def test_an_installation_that_loses_power(packages, debian):
    first = release(packages, 1)
    with booted(debian) as guest:
        debians = kernel_of(guest)
        server.bring(guest, FILES)
        guest.check(f"({APT} install {FILES}/1/linux-image-[0-9]*.deb) >/root/apt.log 2>&1 &")
        wait = f"timeout 600 sh -c 'until test -e /usr/lib/modules/{first}/modules.dep; do :; done'"
        guest.check(wait, LONG)
        # Its files are there, its initramfs is not; the power goes with the context.

    with booted(debian) as guest:
        assert kernel_of(guest) == debians
        # The kernel may be in /boot already, or what was written there may be lost.
        guest.check(f"rm -f /boot/vmlinuz-{first}")
        guest.check("update-grub", LONG)
        assert entries(guest) == [debians]
        result = guest.run("dpkg --configure -a", LONG)
        assert result.status == 0, result.output
        assert entries(guest) == [first, debians]
        shut_down(guest)

    with booted(debian) as guest:
        assert kernel_of(guest) == first
        # Nothing but the kernel was installed.
        guest.check(documented("Go back"), LONG)
        nothing_left(guest)
        assert entries(guest) == [debians]


@on_both_releases
def test_an_initramfs_that_cannot_be_made(packages, debian):
    first = release(packages, 1)
    hook = "/etc/initramfs-tools/hooks/fails"
    with booted(debian) as guest:
        debians = kernel_of(guest)
        server.bring(guest, FILES)
        guest.check(f"printf '#!/bin/sh\\nexit 1\\n' >{hook} && chmod 755 {hook}")
        result = install(guest, 1)
        assert result.status != 0
        assert "The boot menu is as it was" in result.output
        assert entries(guest) == [debians]
        # As packages do that are installed or removed before the cause is mended.
        guest.check("update-grub", LONG)
        assert entries(guest) == [debians]
        shut_down(guest)

    with booted(debian) as guest:
        assert kernel_of(guest) == debians
        guest.check(f"rm {hook}")
        guest.check("dpkg --configure -a", LONG)
        assert entries(guest) == [first, debians]


def test_a_kernel_that_is_tried_once(flavour, packages, debian):
    """As docs/install.md has it: the old kernel stays the default, and comes back by itself."""
    first = release(packages, 1)
    typed = documented("Try it once", RELEASE=first)
    checks = [line for line in typed.splitlines() if line.startswith("grub-probe ")]
    assert len(checks) == 2
    off = [feature for feature in SPACE.features() if feature.boot_off]
    # Debian's images for clouds have a file that sets these parameters anew; the page must cope.
    cloud = 'GRUB_CMDLINE_LINUX="console=ttyAMA0 consoleblank=0"'
    with booted(debian) as guest:
        debians = kernel_of(guest)
        server.bring(guest, FILES)
        # As the page wants it, /boot is an ext4 on a partition.
        assert guest.check("\n".join(checks)).split() == ["ext2"]
        guest.check(
            f"mkdir -p /etc/default/grub.d && echo '{cloud}' >/etc/default/grub.d/10_cloud.cfg"
        )
        guest.check(f"cd {FILES}/1\n{typed}", LONG)
        menu = guest.check(f"grep 'vmlinuz-{first} ' /boot/grub/grub.cfg")
        assert "consoleblank=0 panic=10" in menu
        # That is what the server was made with, and the file of the cloud has taken it away.
        assert "panic=5" not in menu
        # A kernel without an initramfs finds no root, and panics.
        guest.check(f"mv /boot/initrd.img-{first} /root")
        shut_down(guest)

    with booted(debian, reboots=True) as guest:
        assert f"Linux version {first}" in guest.console()
        assert kernel_of(guest) == debians
        guest.check(f"mv /root/initrd.img-{first} /boot")
        # The package is there already, and apt has nothing to do.
        guest.check(f"cd {FILES}/1\n{typed}", LONG)
        shut_down(guest, "systemctl poweroff")

    with booted(debian) as guest:
        assert kernel_of(guest) == first
        typed_then = documented("Install", RELEASE=first, FLAVOUR=flavour)
        guest.check(f"cd {FILES}/1\n{typed_then}", LONG)
        all_on(guest, first)
        # What made Debian's kernel the default makes the one that runs the default.
        default = [line for line in typed.splitlines() if re.match("root=|grub-set-default", line)]
        assert len(default) == 2
        guest.check("\n".join(default))
        for feature in off:
            guest.check(documented("Turn a feature off", PARAMETER=feature.boot_off), LONG)
        shut_down(guest)

    with booted(debian) as guest:
        assert kernel_of(guest) == first
        all_on(guest, first, but=[feature.name for feature in off])
        assert guest.warnings() == ""


def is_refused_without_a_signature(guest, kernel, installs):
    """Assert that a kernel that no hook signs leaves /boot and the menu as they were, and purge it.

    The administrator may say that it is meant. Then it is installed, with a warning.
    """
    kernels = "ls /boot/vmlinuz-* /boot/initrd.img-*; grep -o 'vmlinuz-[^ ]*' /boot/grub/grub.cfg"
    files = "ls /boot"
    before, files_before = guest.check(kernels), guest.check(files)
    assert kernel not in before
    refused = guest.run(f"set -e\n{installs}", LONG)
    assert refused.status != 0
    assert "Secure Boot is on, and no hook of /etc/kernel has signed the kernel" in refused.output
    assert guest.check(kernels) == before
    meant = guest.check("touch /etc/kernel/pagewright-unsigned && dpkg --configure -a 2>&1", LONG)
    assert f"/boot/vmlinuz-{kernel} is not signed. Sign it before the next boot." in meant
    # The kernel, its initramfs, and at least one entry of the menu.
    assert guest.check(kernels).count(kernel) >= 3
    guest.check(f"{APT} purge '?installed?name(pagewright)'", LONG)
    guest.check("rm /etc/kernel/pagewright-unsigned")
    assert (guest.check(kernels), guest.check(files)) == (before, files_before)


def test_a_kernel_that_is_signed_for_secure_boot(flavour, packages, secure, logs):
    """As docs/install.md has it, with answers to the questions of the MOK manager."""
    first = release(packages, 1)
    installs = f"cd {FILES}/1\n{documented('Install', RELEASE=first, FLAVOUR=flavour)}"
    sign = "/etc/kernel/postinst.d/00-pagewright-sign RELEASE /boot/vmlinuz-RELEASE\n"
    script, _, undo = script_of("Secure Boot").partition(sign)
    asks = "mokutil --import"
    password = "secret99"
    # It asks twice.
    answered = f"printf '{password}\\n{password}\\n' | {asks}"
    assert script.count(asks) == 1
    with booted(secure) as guest:
        assert is_debians(guest)
        assert guest.check("mokutil --sb-state") == "SecureBoot enabled"
        server.bring(guest, FILES)
        is_refused_without_a_signature(guest, first, installs)
        guest.check(f"set -e\n{script.replace(asks, answered)}", LONG)
        shut_down(guest)
    hasty = dataclasses.replace(secure, variables=secure.variables.with_suffix(".hasty"))
    shutil.copyfile(secure.variables, hasty.variables)
    server.confirm_key(secure, password)
    with booted(secure) as guest:
        assert is_debians(guest)
        guest.check(installs, LONG)
        shut_down(guest)

    # This one has the same disk, and nobody answers its MOK manager.
    with pytest.raises(MachineError), hasty.boot(timeout=400):
        pass
    console = max(logs.iterdir(), key=lambda folder: int(folder.name)) / evidence.CONSOLE
    asked, _, then = console.read_text(errors="replace").partition("to perform MOK management")
    assert "bad shim signature" in then, asked[-2000:]
    assert "Linux version" not in then

    with booted(secure) as guest:
        assert kernel_of(guest) == first
        all_on(guest, first)
        status = json.loads(guest.run("pagewright status --json", LONG).output)
        machine = status["machine"]
        assert (machine["secure_boot"], machine["lockdown"]) == (True, "integrity")
        # The kernel takes its own modules, and not one that DKMS signed with a key of its own.
        guest.check("modprobe dummy", LONG)
        guest.check(f"cp -r {FILES}/dkms /usr/src/hello-1 && dkms install hello/1", LONG)
        refused = guest.run("modprobe hello").output.rpartition(": ")[2].strip()
        assert REFUSALS[refused] in guest.check("dmesg")
        guest.check(f"{answered} /var/lib/dkms/mok.pub")
        shut_down(guest)

    server.confirm_key(secure, password)
    with booted(secure) as guest:
        assert guest.check("modprobe hello && dmesg | grep -c 'hello: counted 1'") == "1"
        assert guest.warnings() == ""
        # The MOK manager would ask at the next boot.
        assert undo.count("mokutil --delete") == 1
        typed = undo.replace("mokutil", f"printf '{password}\\n{password}\\n' | mokutil")
        guest.check(f"set -e\n{typed}", LONG)
        assert "CN=My kernels" in guest.check("mokutil --list-delete")
        left = guest.run("ls /root/mok.* /etc/kernel/postinst.d/00-pagewright-sign").output
        assert left.count("No such file") == 2
