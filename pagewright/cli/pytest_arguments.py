"""What `pagewright test` was given -> what pytest is given.

pytest looks for tests where it is told, or in the folders that pyproject.toml names, but the
latter only if it is started beside that file. `pagewright test` works from anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pagewright.cli.options import check_place
from pagewright.host.errors import PagewrightError
from pagewright.host.workspace import Workspace

# Options of pytest and its plugins whose value is the next word.
_WITH_VALUE = (
    *("-k", "-m", "-n", "-o", "-p", "-c", "-r", "-W", "--lg-env", "--junit-xml", "--basetemp"),
    *("--rootdir", "--ignore", "--deselect", "--maxfail", "--tb", "--durations", "--dist"),
    *("--color", "--junitxml", "--log-cli-level", "--logs", "--build"),
)
_PLACE = "--lg-env"


def complete(space: Workspace, words: Sequence[str]) -> list[str]:
    """Return the arguments, with the folders of all tests if they name no test file.

    Args:
        space: the repository.
        words: what the user gave.

    Raises:
        PagewrightError: a test file, a test in it, or the file of a place is not there.
    """
    files = []
    before = ""
    for word in words:
        if before == _PLACE or word.startswith(f"{_PLACE}="):
            check_place(Path(word.removeprefix(f"{_PLACE}=")))
        elif not word.startswith("-") and before not in _WITH_VALUE:
            files.append(word)
            file, *names = word.split("::")
            _check_test(space, Path(file), before)
            if names and Path(file).is_file():
                _check_name(Path(file), names[0].partition("[")[0])
        before = word
    return [*words, *([] if files else (str(space.root / n) for n in ("tests", "features")))]


def value(option: str, words: Sequence[str]) -> str | None:
    """Return what an option was given last, or None if it was not given."""
    found = None
    for before, word in pairwise(("", *words)):
        if before == option:
            found = word
        elif word.startswith(f"{option}="):
            found = word.removeprefix(f"{option}=")
    return found


def _check_test(space: Workspace, path: Path, before: str) -> None:
    if path.exists():
        return
    is_option = before[:2] == "--" and "=" not in before
    value = f"if it is the value of {before}, write {before}={path}; " if is_option else ""
    files = sorted(
        str(file.relative_to(space.root))
        for folder in ("tests", "features")
        for file in (space.root / folder).rglob("test_*.py")
    )
    raise PagewrightError(
        f"there is no test file or folder {path}",
        f"{value}the test files are: {', '.join(files)}",
    )


def _check_name(file: Path, name: str) -> None:
    """Raise if a file has neither a test nor a class of tests of a name."""
    tests = re.findall(r"^(?:def|class) (test\w*)", file.read_text(), re.MULTILINE | re.IGNORECASE)
    if name not in tests:
        raise PagewrightError(
            f"there is no test {name!r} in {file}", f"its tests are: {', '.join(tests)}"
        )
