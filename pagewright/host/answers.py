"""What a slow checker said of some input, kept in the cache for the next run on the same input.

It is to checkers what ccache is to the compiler: an answer is taken from the cache only if every
byte that the checker looks at, the checker itself included, is as it was when it gave the answer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pagewright.host.files import replace_text
from pagewright.host.workspace import Workspace

# Of each checker; the oldest go first.
KEPT = 300


def remembered(
    space: Workspace, checker: str, inputs: Iterable[str | Path], ask: Callable[[], str]
) -> str:
    """Return a checker's answer, which it is asked for only if the cache does not have it.

    Args:
        space: the repository, whose cache it is.
        checker: its name, that of a folder in the cache.
        inputs: everything that the answer depends on: texts, and files whose contents count.
        ask: runs the checker. An exception that it raises is nobody's answer, and is not kept.
    """
    digest = hashlib.sha256()
    for one in inputs:
        content = one.read_bytes() if isinstance(one, Path) else one.encode()
        digest.update(b"%d\n" % len(content) + content)
    folder = space.cache / "answers" / checker
    file = folder / digest.hexdigest()
    # Another run may remove it between the two; then it is asked for anew.
    with suppress(FileNotFoundError):
        answer = file.read_text()
        os.utime(file)
        return answer
    answer = ask()
    replace_text(file, answer)
    _forget_the_oldest(folder)
    return answer


def _forget_the_oldest(folder: Path) -> None:
    """Remove the answers that were not asked for the longest."""
    ages = []
    for file in folder.iterdir():
        # Another run may remove it meanwhile.
        with suppress(FileNotFoundError):
            ages.append((file.stat().st_mtime, file))
    for _, file in sorted(ages)[:-KEPT]:
        file.unlink(missing_ok=True)
