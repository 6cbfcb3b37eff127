"""The commands of the documents, for tests that type them as they are there."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from pagewright.host import workspace

ROOT = workspace.find().root
_PROMPT = "    server# "


def section(file: str, heading: str) -> str:
    """Return what a document in docs/ has below a heading."""
    text = (ROOT / "docs" / file).read_text()
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def names(file: str, heading: str) -> list[str]:
    """Return the names in the first column of the table that a document in docs/ has below it."""
    cells = re.findall(r"^\| (`.*?) \|", section(file, heading), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(.*?)`", cell)]


def scripts(text: str, server: bool = False) -> list[str]:
    """Return each block of commands as a script, with here-documents.

    Args:
        text: of a document.
        server: what is typed on the server, rather than in the clone.
    """
    found = []
    for block in re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE):
        here, prompt, there = block.partition(_PROMPT)
        if part := prompt + there if server else here:
            found.append(re.sub(rf"^(?:{_PROMPT}| {{4}})", "", part, flags=re.MULTILINE))
    return found


def clone(folder: Path) -> Path:
    """Make a copy of this clone, in which nothing is built, for commands that change it.

    Its command `pagewright` has the Python environment of this clone.
    """
    generated = shutil.ignore_patterns("out", ".venv", ".git", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=generated)
    main = "from pagewright.cli.main import main; main()"
    program = folder / "bin" / "pagewright"
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -P -c '{main}' \"$@\"\n"
    )
    return folder
