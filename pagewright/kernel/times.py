"""The times of files, by which kbuild tells what it has to compile."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pagewright.host.files import replace_text


def renew(record: Path, folder: Path, texts: Mapping[str, str]) -> None:
    """Give a new time to each file whose text is not the one that was compiled last.

    kbuild compiles a file that is newer than its object. A file that was put back with the time
    that it had, as by `cp -p`, `rsync -a` or `tar -x`, is older than the object of the text that
    was there in between.

    Args:
        record: has the texts of last time, and gets those of this time.
        folder: what the names of the files are relative to.
        texts: the files that may have been put back, with a digest of each.
    """
    # Of what was compiled before there was a record nothing is known.
    before = json.loads(record.read_text()) if record.exists() else texts
    for name in sorted({*before, *texts}):
        if before.get(name) != texts.get(name) and (folder / name).exists():
            os.utime(folder / name)
    # If kbuild is interrupted, the new times are still there.
    replace_text(record, json.dumps(dict(texts), indent=1))
