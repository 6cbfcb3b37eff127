"""How the workbench starts programs, and ends them with itself."""

from __future__ import annotations

import codecs
import errno
import io
import logging
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from pagewright.host.errors import (
    DiskFullError,
    HostError,
    NetworkError,
    PagewrightError,
    ProgramError,
)

# `pagewright --debug` prints what it is told.
LOGGER = logging.getLogger(__name__)

# How many of a failed program's last lines an error shows.
TAIL_LINES = 25
# How long a program has to end after it was asked to.
END_SECONDS = 5

# The disk is full, or what the user may have of it. Python and programs have the same words for it.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

# The language of the errors that `explain` knows. The C library looks at LANGUAGE first, unless the
# locale is C itself.
_LANGUAGE = {"LC_ALL": "C.UTF-8", "LANGUAGE": ""}

# With these git names a repository to its hooks, to aliases, and to what `git bisect run` and
# `git rebase --exec` start. Programs of ours that are to work in another repository would find that
# one. GIT_CONFIG_COUNT and GIT_CONFIG_PARAMETERS name no repository, and may hold the user's name.
_GIT_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)
# With these `make -k test` tells the make that we start how to work, and the kernel's makefiles
# take compilers, flags and names from the environment of who works on kernels. What tells whether a
# kernel is made of its sources knows nothing of it, so that the odd kernel would stay.
_OF_MAKE = re.compile(
    r"\w*FLAGS|MAKEFILES|MAKELEVEL|MAKEOVERRIDES"
    r"|CROSS_COMPILE\w*|LLVM|LLVM_IAS|LOCALVERSION|(INSTALL|KBUILD|KCONFIG)_\w+"
)


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a text."""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def explain(command: Sequence[str], output: str, status: int) -> PagewrightError:
    """Turn a failed program's output into an error, naming causes we know."""
    name = next(w for w in command if w not in ("sudo", "env", "-n") and "=" not in w)
    if any(os.strerror(number) in output for number in _NO_SPACE):
        return _disk_full(name, tail(output, 3))
    if re.search(r"Temporary failure|Could not (resolve|connect)|Unable to connect", output):
        return NetworkError(
            f"the network is not reachable ({name})",
            "check the connection to the Debian mirror and PyPI, then run the same command again",
            tail(output, 3),
        )
    complaints = [line for line in output.splitlines() if re.search(r"\b[Ee]rror:|\*\*\* ", line)]
    return ProgramError(
        f"{shlex.join(command)[:200]} failed with status {status}",
        details="\n".join(complaints[:TAIL_LINES]) or tail(output),
    )


def explain_own(error: OSError) -> PagewrightError:
    """Turn what Python could not do itself into an error, naming causes we know."""
    if error.errno in _NO_SPACE:
        return _disk_full("pagewright", str(error))
    return PagewrightError(str(error))


def _disk_full(who: str, details: str) -> DiskFullError:
    todo = "free some space (pagewright needs about 9 GB), then run the same command again"
    return DiskFullError(f"the disk is full ({who} could not write)", todo, details)


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    on_line: Callable[[str], None] | None = None,
    log: Path | None = None,
    check: bool = True,
    timeout: float | None = None,
) -> str:
    """Run a program to its end and return what it printed (both streams).

    The program gets a process group of its own, which is ended with us: Ctrl-C
    or an exception leaves nothing running.

    Args:
        command: the program and its arguments.
        cwd: where it runs.
        env: variables added to those that it inherits.
        stdin: its standard input; empty if None.
        on_line: called with each line as it comes (for progress).
        log: also write the output to this file.
        check: raise if the status is not 0.
        timeout: seconds before it is ended and an error raised.

    Raises:
        PagewrightError: the program is missing, failed, or ran out of time.
    """
    words = [str(word) for word in command]
    if not shutil.which(words[0]):
        raise HostError(
            f"{words[0]} is not installed", "run `pagewright doctor` to see what to install"
        )
    LOGGER.debug("%s%s", shlex.join(words), f" (in {cwd})" if cwd else "")
    process = subprocess.Popen(
        _ended_with_us(words),
        cwd=cwd,
        env={**_inherited(), **_LANGUAGE, **(env or {})},
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    )
    try:
        if on_line is None and log is None:
            output, _ = process.communicate(stdin, timeout=timeout)
        else:
            output = _follow(process, stdin, on_line, log, timeout)
    except subprocess.TimeoutExpired as error:
        end_group(process)
        raise ProgramError(f"{words[0]} did not finish within {timeout:g} s") from error
    except BaseException:
        end_group(process)
        raise
    if check and process.returncode != 0:
        raise explain(words, output, process.returncode)
    return output


def _inherited() -> dict[str, str]:
    """Return our environment without what is about us, and not about the programs we start."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _GIT_REPOSITORY and not _OF_MAKE.fullmatch(name)
    }


def _ended_with_us(words: list[str]) -> list[str]:
    """Return a command that ends when we do, even if we are killed.

    sudo would lose that, and must not be wrapped.
    """
    return words if words[0] == "sudo" else ["setpriv", "--pdeathsig", "TERM", "--", *words]


def _follow(
    process: subprocess.Popen[str],
    stdin: str | None,
    on_line: Callable[[str], None] | None,
    log: Path | None,
    timeout: float | None,
) -> str:
    """Collect a program's output line by line.

    Raises:
        TimeoutExpired: it did not end in time.
    """
    give_up = None if timeout is None else time.monotonic() + timeout
    lines: list[str] = []
    if stdin is not None:
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
    with log.open("w") if log else nullcontext() as sink:
        for line in _lines(process, give_up):
            lines.append(line)
            if sink:
                sink.write(line)
                sink.flush()
            if on_line:
                on_line(line.rstrip("\n"))
        process.wait(_left(process, give_up))
    return "".join(lines)


def _lines(process: subprocess.Popen[str], give_up: float | None) -> Iterator[str]:
    """Give a program's lines as they come, the last one with or without its newline."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder = io.IncrementalNewlineDecoder(characters, translate=True)
    rest = ""
    while True:
        # Reading alone would wait for as long as the program is silent.
        select.select([descriptor], [], [], _left(process, give_up))
        _left(process, give_up)
        chunk = os.read(descriptor, 1 << 16)
        *whole, rest = (rest + decoder.decode(chunk, final=not chunk)).split("\n")
        yield from (f"{line}\n" for line in whole)
        if not chunk:
            break
    if rest:
        yield rest


def _left(process: subprocess.Popen[str], give_up: float | None) -> float | None:
    """Return how many seconds a program has left; raise if it has none."""
    if give_up is None:
        return None
    left = give_up - time.monotonic()
    if left <= 0:
        raise subprocess.TimeoutExpired(process.args, 0)
    return left


def end_group(process: subprocess.Popen[str]) -> None:
    """End a program and all it started, politely first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            # Root's, started with sudo.
            subprocess.run(
                ["sudo", "-n", "kill", f"-{number}", "--", f"-{process.pid}"], check=False
            )
        give_up = time.monotonic() + END_SECONDS
        while time.monotonic() < give_up and _group_lives(process):
            time.sleep(0.02)


def _group_lives(process: subprocess.Popen[str]) -> bool:
    """Tell whether a program, or another one of its group, still runs."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return process.returncode is None
    return True


def foreground(command: Sequence[str | Path]) -> int:
    """Give a program our terminal until it ends, and return its exit status."""
    words = [str(word) for word in command]
    LOGGER.debug("%s", shlex.join(words))
    return subprocess.call(_ended_with_us(words), env=_inherited())
