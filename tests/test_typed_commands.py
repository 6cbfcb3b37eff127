"""Commands of the documents: what those of other programs need, and that they run.

test_documents.py has the options of `pagewright` and the targets of `make`. Here each program of a
code block, and of a command in the text, is one that setup installs or that Debian has, and each
file is there or made by a command that is named. With --full, commands of README.md, docs/using.md
and the features' READMEs are run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath

import pytest
from command_lines import ROOT, Command, blocks, commands, simple

from pagewright.guest import programs
from pagewright.host import packages, workspace
from pagewright.host.run import run
from pagewright.kernel import build

SPACE = workspace.find()
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "features").glob("*/*.md")),
    ROOT / "tools" / "README.md",
]

# Blocks of what is printed, or is in a file, by their document and first line.
NO_COMMANDS = {
    ("docs/lab.md", "board:"): "a file of labgrid's exporter",
    ("tools/README.md", "linear-map: on (blocks)"): "what `pagewright status` prints",
}

# Commands of the shell itself.
BUILTINS = ("cd", "echo", "export")
# What has documents and tests of its own.
OURS = ("pagewright", "make", "bin/pagewright")

# By the name of a program, the Debian package that has it.
PACKAGES = {
    "aarch64-linux-gnu-objdump": "binutils-aarch64-linux-gnu",
    "apt": "apt",
    "apt-get": "apt",
    "apt-mark": "apt",
    "cat": "coreutils",
    "chmod": "coreutils",
    "cp": "coreutils",
    "dmesg": "util-linux",
    "dpkg": "dpkg",
    "gcc": "gcc",
    "git": "git",
    "gpg": "gpg",
    "grep": "grep",
    "grub-probe": "grub-common",
    "grub-reboot": "grub2-common",
    "grub-set-default": "grub2-common",
    "hostname": "hostname",
    "ls": "coreutils",
    "man": "man-db",
    "mkdir": "coreutils",
    "mokutil": "mokutil",
    "mount": "mount",
    "nproc": "coreutils",
    "openssl": "openssl",
    "python3": "python3",
    "quilt": "quilt",
    "reboot": "systemd-sysv",
    "rm": "coreutils",
    "scp": "openssh-client",
    "sed": "sed",
    "spin": "spin",
    "sudo": "sudo",
    "systemctl": "systemd",
    "umount": "mount",
    "uname": "coreutils",
    "update-grub": "grub2-common",
    "update-initramfs": "initramfs-tools",
}
# What setup does not install by that name, and a reader of a clone has all the same.
THERE = {
    "binutils-aarch64-linux-gnu": "setup installs it, on an arm64 host as binutils",
    "gpg": "gnupg, which setup installs, depends on it",
    "python3": "bin/pagewright is in Python",
    "sudo": "README.md asks for root or sudo",
}

# Documents whose commands are typed elsewhere than in the clone, and where.
KERNEL_TREE, SERVER, GUEST = "a git tree of the kernel", "a server", "a guest"
ELSEWHERE = {
    "docs/upstream.md": KERNEL_TREE,
    "docs/tlb-model.md": GUEST,
    "tools/README.md": SERVER,
}
# Folders that a block begins in, where that is what the block before it has changed to.
BEGINS_IN = {
    (
        "docs/porting.md",
        "QUILT_PATCHES=patches quilt refresh -p ab --no-timestamps --no-index",
    ): "out/6.12/tree"
}

# Files of the clone that are generated, and the command that makes them.
MADE = {
    "out/6.12/clang-4k": "pagewright build clang-4k",
    "out/6.12/guest/root.ext4": "pagewright boot patched-4k",
    "out/6.12/packages": "make deb",
    "out/6.12/patched-4k": "pagewright build patched-4k",
    "out/6.12/repository": "make repo",
    "out/6.12/series": "make series",
    "out/6.12/tree": "pagewright tree",
    ".bootstrap.lock": "pagewright",
    "~/.config/pagewright": "pagewright deb",
}
# Files of other machines: what has made them, or a command that does so.
OF_OTHERS = {
    "/boot": "Debian",
    "/boot/vmlinuz-RELEASE": "apt install",
    "/etc/apt/apt.conf.d/52pagewright": "cat",
    "/etc/apt/keyrings": "Debian",
    "/etc/apt/keyrings/pagewright-archive-keyring.asc": "scp",
    "/etc/apt/sources.list.d/pagewright.sources": "cat",
    "/etc/default/grub.d": "mkdir",
    "/etc/kernel/pagewright-unsigned": "touch",
    "/etc/kernel/postinst.d/00-pagewright-sign": "cat",
    "/mnt": "Debian",
    "/root": "Debian",
    "/var/lib/dkms": "Debian",
    "/root/mok.crt": "openssl",
    "/root/mok.der": "openssl",
    "/root/mok.key": "openssl",
    "/var/lib/prometheus/node-exporter/pagewright.prom": "pagewright export",
}
# Words with a slash that are no files.
NO_FILES = re.compile(
    # An option, a variable, an expression of sed, the subject of a certificate, places of a lab,
    # and what is on another computer.
    r"-|PATH=|s/|/CN=|shelf/|\w+@SERVER:"
)


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def of_blocks() -> Iterator[Command]:
    """Yield the commands of all blocks, and of other programs those in the text."""
    for document in DOCUMENTS:
        yield from commands(document, [line for of, line in NO_COMMANDS if of == name(document)])
        for span in re.findall(r"`([^`]+)`", re.sub(r"(?m)^ {4,}.*$", "", document.read_text())):
            line = " ".join(span.split())
            words = line.split()
            if len(words) > 1 and words[0] in PACKAGES:
                for found, files in simple(line):
                    yield Command(document, found, files, False, "", line, True)


def others() -> list[Command]:
    """Return those of other programs than ours."""
    found = []
    for one in of_blocks():
        words = one.words[1:] if one.words[0] == "sudo" else one.words
        if words[0] not in OURS:
            found.append(one)
    return found


def where(one: Command) -> str:
    """Tell where a command is typed; nothing if that is the clone."""
    return SERVER if one.server else ELSEWHERE.get(name(one.document), "")


@cache
def priorities() -> dict[str, str]:
    """Return the priority of each package that apt knows of those above."""
    shown = run(["apt-cache", "show", "--no-all-versions", *set(PACKAGES.values())])
    return dict(re.findall(r"(?ms)^Package: (\S+)$.*?^Priority: (\S+)$", shown))


def test_debian_has_the_packages():
    assert set(PACKAGES.values()) - priorities().keys() == set()


def test_the_packages_have_the_programs():
    """Of those that are installed here."""
    here = [program for program in PACKAGES if shutil.which(program)]
    assert len(here) > 10
    said = run(["dpkg-query", "--search", *(f"*bin/{program}" for program in here)])
    has = {
        (package, PurePath(file).name)
        for packages_of_it, file in re.findall(
            r"(?m)^(?!diversion)([^:]+(?:, [^:]+)*): (\S+)$", said
        )
        for package in packages_of_it.split(", ")
    }
    wrong = [
        program
        for program in here
        if not any(PACKAGES[program] in package and program == of for package, of in has)
    ]
    assert wrong == []


@pytest.mark.parametrize("one", others(), ids=lambda one: f"{name(one.document)}: {one.line}")
def test_a_program_is_there(one: Command):
    for program in one.words[:2] if one.words[0] == "sudo" else one.words[:1]:
        if program in BUILTINS or "/" in program:
            # Whether a file is there is another test's.
            continue
        package = PACKAGES[program]
        if not where(one) and not one.in_text:
            installed = {
                need.package
                for need in (*packages.needs(), *packages.PACKAGING, *packages.FULL_TESTS)
            }
            everywhere = priorities()[package] in ("required", "important")
            assert package in installed or everywhere or package in THERE, package


def paths(one: Command) -> Iterator[str]:
    """Yield the words of a command that are files, with their folders."""
    begins = BEGINS_IN.get((name(one.document), one.block[0])) if one.block else None
    folder = Path(begins or "", one.folder)
    for word in (*one.words, *one.files):
        if "/" not in word or NO_FILES.match(word) or " " in word:
            continue
        yield word if word[0] in "/~" else os.path.normpath(Path(folder, word))


def matches(folder: Path, pattern: str) -> bool:
    return pattern == "." or any(folder.glob(pattern))


def is_there(path: str, one: Command) -> bool:
    """Tell whether a file is there, or made by a command that the documents name."""
    tree = build.ensure(SPACE, "patched-4k").tree
    path = path.replace("~/pagewright/", "").removeprefix("packages/")
    if where(one) == KERNEL_TREE and not path.startswith("out/"):
        # `git format-patch -o patches` has made these.
        return (tree / path).exists() or path == "patches/*.patch"
    if where(one) == GUEST:
        return path == programs.path("percpu-local", "count")
    if path.startswith("/"):
        return path == "/" or any(PurePath(path).is_relative_to(of) for of in OF_OTHERS)
    if re.fullmatch(r"linux-\S+\.deb|pagewright-tools\S+\.deb", path):
        return one.server
    made = [of for of in MADE if PurePath(path).is_relative_to(of)]
    if not made:
        return matches(ROOT, path)
    [of] = made
    inside = os.path.relpath(path, of)
    if of == "out/6.12/tree":
        return matches(tree, inside) or matches(tree / "patches", inside)
    if of == "out/6.12/patched-4k" and inside.startswith(("vmlinux", "lib/")):
        return (SPACE.root / path).exists()
    return True


@pytest.mark.parametrize(
    "one",
    [one for one in others() if [*paths(one)]],
    ids=lambda one: f"{name(one.document)}: {one.line}",
)
def test_a_file_is_there(one: Command):
    assert [path for path in paths(one) if not is_there(path, one)] == []


def test_what_makes_a_file_is_a_command_of_the_documents():
    typed = [" ".join(one.words) for one in of_blocks()]
    texts = " ".join(" ".join(file.read_text().split()) for file in DOCUMENTS)
    for command in (*MADE.values(), *OF_OTHERS.values()):
        known = any(line.startswith(command) for line in typed) or f"`{command}" in texts
        assert known or command == "Debian", command


def test_no_block_is_left_out_in_vain():
    found = {
        (name(document), block[0])
        for document in DOCUMENTS
        for block in blocks(document.read_text())
    }
    assert NO_COMMANDS.keys() | BEGINS_IN.keys() <= found


# With --full a line of a block is run if it is in one of these documents, ends by itself, and
# writes nothing but in out/ and in the folder in which it is typed. Here that is an empty one,
# unless the command names what is in out/.
RUN = [
    ROOT / "README.md",
    ROOT / "docs" / "using.md",
    *sorted((ROOT / "features").glob("*/README.md")),
]
CONSOLE = "a console waits for its user; test_cli.py looks at what begins one"
SUITE = "runs tests, which --full does by itself"
# The other lines, and why they are not run.
NOT_RUN = {
    "make": "sets up, builds and boots: test_demo.py",
    "make test": SUITE,
    "export PATH=$PWD/bin:$PATH": "all commands here have it",
    "pagewright clean --cache": "removes the cache of all clones; test_cli.py has one of its own",
    "rm -rf .venv .bootstrap.lock": "removes what runs this test",
    "rm -rf ~/.config/pagewright": "removes the user's key",
    "pagewright build patched-4k --without atomic-write-fault": "compiles for ten minutes, as "
    "test_build.py does",
    "aarch64-linux-gnu-objdump -d --no-show-raw-insn --disassemble=do_once_inc_8_static "
    "out/6.12/clang-4k/lib/percpu_bench.ko": "Clang compiles for half an hour; "
    "features/percpu-local/test_bench.py counts what this prints",
    "pagewright boot patched-4k": CONSOLE,
    "pagewright boot patched-4k --cpu cortex-a72 --smp 4 --overlay my-files": CONSOLE,
    "pagewright boot patched-4k --uefi": CONSOLE,
    "pagewright boot patched-4k --uefi --nodes 2 --smp 4": CONSOLE,
    "pagewright boot patched-4k --qemu-args '-d unimp' --single-threaded": CONSOLE,
    "pagewright boot patched-4k --gdb": "waits for a debugger",
    "pagewright test features/linear-map -k fold": SUITE,
    "pagewright test --full features/hugetlb-vmemmap/test_hugetlb_vmemmap.py "
    "-k make_room_for_others -rP": SUITE,
    "pagewright test --full features/hugetlb-vmemmap/test_device_memory.py": SUITE,
    "pagewright logs": "says what another run has left, and its status is that of that run",
}
# The others, and what they print.
SHOWN = {
    "pagewright list": r"(?m)^  \* patched-4k +all features$",
    "pagewright build patched-4k": "",
    "pagewright series linear-map": r"out/6\.12/series/linear-map",
    "pagewright boot patched-4k --run 'uname -a'": r"(?m)^Linux \S+ 6\.12\.\d+",
    "pagewright boot patched-4k --memory 256G --append rodata=on --run 'grep MemTotal "
    "/proc/meminfo'": r"MemTotal: +2639\d{5} kB",
    "pagewright kunit linear_map": "",
    "pagewright kunit cpu_pause --smp 4": "",
    "pagewright selftest atomic-write-fault/semantics": "",
    "pagewright selftest mm/hugepage-mmap --append hugepages=128": "",
    "pagewright map patched-4k": r"\b32M\b",
    "pagewright map base-4k --rodata on --output map.svg": r"map\.svg",
    "pagewright boot patched-4k --memory 192G --append 'hugepagesz=1G hugepages=192' --run 'grep "
    "MemFree /proc/meminfo; cat /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages'": (
        r"(?m)^187$"
    ),
    "pagewright boot patched-4k --smp 4 --memory 8G --icount --run \"dmesg | grep 'local "
    "map'\"": r"percpu: local map of .*, 28 KiB/cpu of tables",
    # SLUB reads through TPIDR, and exchanges at the local address, which an AND makes.
    "aarch64-linux-gnu-objdump -d --no-show-raw-insn --disassemble=kmem_cache_free "
    "out/6.12/patched-4k/vmlinux": (
        r"(?s)<kmem_cache_free>:.*\bmrs\s+x\d+, tpidr_el1\n.*"
        r"\band\s+(x\d+), x\d+, #0xf{3,}\w+\n.*\bcasp\s+[^\n]*\[\1\]"
    ),
}


def of_these() -> list[str]:
    """Return the lines of these documents' blocks."""
    found = [one.line for document in RUN for one in commands(document, [])]
    return list(dict.fromkeys(re.sub(r"\s+#.*", "", line) for line in found))


def test_each_line_is_run_or_left_out_for_a_reason():
    assert sorted(of_these()) == sorted([*SHOWN, *NOT_RUN])


def shown_by(command: str, folder: Path) -> str:
    """Run a command as the documents have it typed; return what it prints."""
    path = f"{ROOT / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.full
@pytest.mark.parametrize("command", SHOWN, ids=lambda command: command[:90])
def test_a_command_runs(command: str, tmp_path: Path):
    build.ensure(SPACE, "patched-4k")
    folder = ROOT if " out/" in command else tmp_path
    assert re.search(SHOWN[command], shown_by(command, folder))


@pytest.mark.full
def test_the_model_is_searched_by_hand(tmp_path):
    """In a copy: spin writes its program beside the model."""
    feature = ROOT / "features" / "cpu-pause"
    shutil.copy(feature / "model" / "cpu_pause.pml", tmp_path)
    text = " ".join((feature / "README.md").read_text().split())
    [command] = re.findall(r"`(spin -DSPURIOUS=1 -a [^`]*)`", text)
    assert "errors: 0" in shown_by(command, tmp_path)
