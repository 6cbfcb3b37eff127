"""The kernel's own style checker, run on our files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pagewright.host.answers import remembered
from pagewright.host.errors import ProgramError
from pagewright.host.files import toml
from pagewright.host.run import run, tail
from pagewright.host.workspace import Feature, Workspace

DICTIONARY = Path("/usr/lib/python3/dist-packages/codespell_lib/data/dictionary.txt")

# The kernel's idiom for exception tables passes assembler operands to a macro; checkpatch takes
# their % for an operator, in the kernel's own files too.
EXCEPTION_TABLE = r"CHECK: spaces preferred around that '%'(.|\n)*_ASM_EXTABLE_"

# Trace events have a layout of their own, which their document prescribes.
TRACE_LAYOUT = r"CHECK: (Alignment should match|Lines should not end)(.|\n)*include/trace/events/"


def known_complaints(feature: Feature) -> list[str]:
    """Return what checkpatch says wrongly of a feature's patches, as regular expressions.

    Some it says wrongly of every feature. The feature's own are in its checkpatch.toml, each
    with the reason why it is wrong; of other features they may be right.
    """
    found = [EXCEPTION_TABLE, TRACE_LAYOUT]
    file = feature.path / "checkpatch.toml"
    if file.exists():
        with toml(file) as data:
            found += [entry["complaint"] for entry in data["wrong"]]
    return found


# What changes in a patch each time it is written: the commit's name, and when that was made.
_OF_THE_TIME = re.compile(r"\AFrom [0-9a-f]{40} .*\n|^Date: .*\n", re.MULTILINE)


def checkpatch(
    space: Workspace,
    tree: Path,
    files: Sequence[Path],
    *options: str,
    known: Sequence[str] = (),
) -> list[str]:
    """Return what `checkpatch --strict` has to say about files or patches.

    Args:
        space: the repository, whose cache remembers what it has said before.
        tree: a kernel tree.
        files: patches, or with the option -f whole files.
        options: more options for checkpatch.
        known: regular expressions of complaints that are wrong.

    Raises:
        ProgramError: it did not get to the end of each file.
    """
    scripts = tree / "scripts"
    words = ["--strict", "--no-tree", "--codespell", "--codespellfile", str(DICTIONARY), *options]
    command: list[str | Path] = ["perl", scripts / "checkpatch.pl", *words, *files]
    inputs: list[str | Path] = [
        *(scripts / name for name in ("checkpatch.pl", "spelling.txt", "const_structs.checkpatch")),
        DICTIONARY,
        *words,
        *(file.name for file in files),
        *(_OF_THE_TIME.sub("", file.read_text()) for file in files),
    ]

    def ask() -> str:
        # Its status says whether there are complaints. It sums up each file.
        said = run(command, check=False)
        if len(re.findall("^total: ", said, re.MULTILINE)) != len(files):
            names = ", ".join(file.name for file in files)
            raise ProgramError(f"checkpatch did not look at all of {names}", details=tail(said))
        return said

    output = remembered(space, "checkpatch", inputs, ask)
    complaints = []
    # Of several files, each has a heading, with no empty lines around it.
    for block in re.split(r"\n\n|^-+\n.*\n-+\n", output, flags=re.M):
        if re.match(r"(ERROR|WARNING|CHECK): ", block) and not any(
            re.match(one, block) for one in known
        ):
            complaints.append(block)
    return complaints
