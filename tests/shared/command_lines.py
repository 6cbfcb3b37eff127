"""The commands of all programs that the documents have the reader type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pagewright.host import workspace

ROOT = workspace.find().root
_SERVER = "server# "
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# What ends a command, and what stands before the name of a file that is read or written.
_ENDS = frozenset((";", "&", "&&", "|", "||", "(", ")"))
_REDIRECTS = frozenset(("<", ">", ">>"))


@dataclass(frozen=True)
class Command:
    """A simple command: a program with its arguments.

    Attributes:
        document: where it is.
        words: the program and what follows, without variables that are set for it.
        files: what it is redirected to or from.
        server: it is typed on a server, as its prompt says.
        folder: what a `cd` before it in the same block has changed to, if there is one.
        line: the line as it is typed.
        in_text: it is in the text and not in a block.
        block: the lines of its block, as they are there.
    """

    document: Path
    words: tuple[str, ...]
    files: tuple[str, ...]
    server: bool
    folder: str
    line: str
    in_text: bool = False
    block: tuple[str, ...] = ()


def blocks(text: str) -> list[list[str]]:
    """Return the lines of each indented block below an empty line, without its indentation."""
    found = re.findall(r"(?:\A|(?<=\n\n))((?: {4,}.*\n)+)", text)
    return [[line.strip() for line in block.splitlines()] for block in found]


def lines(block: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield what is typed in a block, and whether on a server.

    Lines that are continued are one. What is in a here-document is not typed as a command.
    """
    rest = iter(block)
    server = False
    for line in rest:
        server = server or line.startswith(_SERVER)
        typed = line.removeprefix(_SERVER)
        while typed.endswith("\\"):
            typed = f"{typed[:-1]} {next(rest)}"
        yield typed, server
        if here := re.search(r"<<'(\w+)'", typed):
            while next(rest) != here[1]:
                pass


def simple(line: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the words, and the files of redirections, of each simple command in a line."""
    while inner := re.search(r"\$\(([^()]*)\)", line):
        yield from simple(inner[1])
        line = line.replace(inner[0], "OUTPUT")
    line = re.sub(r"<<'\w+'", "", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "$@:%^!,+[]{}"
    words: list[str] = []
    files: list[str] = []
    tokens = iter(lexer)
    for token in tokens:
        if token in _REDIRECTS:
            files.append(next(tokens))
        elif token not in _ENDS:
            if words or not _ASSIGNMENT.match(token):
                words.append(token)
        elif words:
            yield tuple(words), tuple(files)
            words, files = [], []
    if words:
        yield tuple(words), tuple(files)


def commands(document: Path, left_out: Collection[str]) -> Iterator[Command]:
    """Yield the simple commands of a document's blocks, but for some that begin so."""
    for block in blocks(document.read_text()):
        if block[0] in left_out:
            continue
        folder = ""
        for line, server in lines(block):
            for words, files in simple(line):
                yield Command(document, words, files, server, folder, line, False, tuple(block))
                if words[0] == "cd":
                    folder = str(Path(folder, words[1]))
