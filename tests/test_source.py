"""The kernel source: which release is taken, how it is unpacked, how many stay in the cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagewright.host import disk, doctor, packages, scratch
from pagewright.host.errors import DiskFullError, SourceError
from pagewright.host.run import run
from pagewright.host.workspace import Workspace
from pagewright.kernel import source
from pagewright.kernel.source import Source

MADISON = """\
linux-source-6.12 | 6.12.118-1 | http://localhost/debian bookworm/main amd64 Packages
linux-source-6.12 | 6.12.117-2 | http://localhost/debian bookworm/main amd64 Packages
linux-source-6.12 | 6.12.117-2 | http://localhost/mirror bookworm/main amd64 Packages
linux-source-6.12 | 6.12.117-1 | http://localhost/debian bookworm/main amd64 Packages
linux-source-6.12 | 6.12.115-1 | http://localhost/debian bookworm/main amd64 Packages
"""


@pytest.fixture
def apt(tmp_path, monkeypatch) -> Workspace:
    """Let apt offer five versions, and return a workspace."""
    monkeypatch.setattr(packages, "run", lambda command: MADISON)
    return Workspace(tmp_path, tmp_path / "cache")


def test_release_known_good_is_preferred_to_a_newer_one(apt, capsys):
    assert source.candidate(apt, "p", "6.12.117") == "6.12.117-2"
    assert capsys.readouterr().err == ""


def test_newest_release_on_request(apt):
    assert source.candidate(apt, "p", "6.12.117", "newest") == "6.12.118-1"


def test_a_release_newer_than_the_one_taken_is_found(apt, monkeypatch):
    monkeypatch.delenv(source.VARIABLE, raising=False)
    assert source.newer(apt, "p", "6.12.117-2") == "6.12.118-1"
    assert source.newer(apt, "p", "6.12.118-1") == ""
    # Not even a later one that is gone from apt's lists.
    assert source.newer(apt, "p", "6.12.118-1+deb13u1") == ""
    assert source.newer(apt, "p", "6.12.118-1~deb12u1") == "6.12.118-1"
    # Who asked for a release knows that there are others.
    monkeypatch.setenv(source.VARIABLE, "6.12.117")
    assert source.newer(apt, "p", "6.12.117-2") == ""


def test_another_release_on_request(apt):
    assert source.candidate(apt, "p", "6.12.117", "6.12.115") == "6.12.115-1"


def test_release_that_apt_does_not_have_lists_those_it_has(apt):
    with pytest.raises(SourceError, match=r"no version 6\.12\.11 of p") as error:
        source.candidate(apt, "p", "6.12.117", "6.12.11")
    assert error.value.todo.endswith(
        "newest or the point release of one of: 6.12.118-1, 6.12.117-2, 6.12.117-1, 6.12.115-1"
    )


def test_newest_release_if_apt_no_longer_has_the_one_known_good(apt, capsys):
    assert source.candidate(apt, "p", "6.12.116") == "6.12.118-1"
    said = capsys.readouterr().err.splitlines()
    assert said == ["apt no longer has linux 6.12.116, which is known good; taking 6.12.118-1"]


def test_old_lists_of_apt_are_not_taken_for_an_archive_that_went_on(apt):
    with pytest.raises(SourceError, match=r"nothing newer than linux 6\.12\.118-1") as error:
        source.candidate(apt, "p", "6.12.120")
    assert "apt-get update" in error.value.todo


# --- Unpacking ------------------------------------------------------------------


@pytest.fixture
def space(tmp_path: Path, monkeypatch) -> Workspace:
    """Make a repository whose source package is tiny, and is made when it is fetched."""
    base = tmp_path / "repo" / "base" / "6.12"
    base.mkdir(parents=True)
    (base / "base.toml").write_text(
        'package = "p"\nknown_good = "6.12.1"\noldest = "6.12.0"\nobjects = 1\n'
    )
    monkeypatch.setattr(source, "candidate", lambda *_: os.environ["PAGEWRIGHT_KERNEL"])
    monkeypatch.setattr(source, "UNPACK_MB", 1)

    def download(package: str, folder: Path) -> Path:
        tree = tmp_path / "linux-source-6.12"
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        (tree / "main.c").write_text(f"{package}\n")
        os.utime(tree / "main.c", (10**9, 10**9))
        root = tmp_path / "package"
        (root / "usr" / "src").mkdir(parents=True, exist_ok=True)
        (root / "DEBIAN").mkdir(exist_ok=True)
        (root / "DEBIAN" / "control").write_text(
            "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: none\n"
        )
        tarball = root / "usr" / "src" / "linux-source-6.12.tar.xz"
        run(["tar", "-cJf", tarball, "-C", tmp_path, tree.name])
        run(["dpkg-deb", "-b", root, folder / "p.deb"])
        return folder / "p.deb"

    monkeypatch.setattr(source, "_download", download)
    return Workspace(tmp_path / "repo", tmp_path / "cache")


def ensure(space: Workspace, version: str, monkeypatch) -> Source:
    """Have a version of the source, as a process that has just been started."""
    monkeypatch.setenv("PAGEWRIGHT_KERNEL", version)
    return source.ensure.__wrapped__(space)


def test_unpacked_files_are_no_older_than_their_unpacking(space, monkeypatch):
    before = time.time() - 1
    file = ensure(space, "6.12.1-1", monkeypatch).path / "main.c"
    assert file.read_text() == "p=6.12.1-1\n"
    assert file.stat().st_mtime >= before


def test_source_in_the_cache_is_not_fetched_again(space, monkeypatch):
    first = ensure(space, "6.12.1-1", monkeypatch)
    monkeypatch.setattr(source, "_download", None)
    assert ensure(space, "6.12.1-1", monkeypatch) == first


def releases(space: Workspace) -> list[str]:
    """Return the releases in the cache."""
    return sorted(path.name for path in (space.cache / "source").glob("[0-9]*"))


def use(entry: Path, when: int) -> None:
    """Put an entry into the cache that a process used that has ended."""
    entry.mkdir(parents=True)
    mark = entry.with_name(f".{entry.name}.used")
    mark.touch()
    os.utime(mark, (when, when))


def test_two_releases_stay_in_the_cache(space, monkeypatch):
    store = space.cache / "source"
    use(store / "6.12.8-1", 300)
    use(store / "6.12.9-1", 100)
    (store / "6.12.7-1").mkdir()
    ensure(space, "6.12.1-1", monkeypatch)
    assert releases(space) == ["6.12.1-1", "6.12.8-1"]
    assert {path.name for path in store.glob(".*")} == {
        ".lock",
        ".6.12.1-1.used",
        ".6.12.8-1.used",
    }


def test_release_that_another_process_uses_stays(space, monkeypatch):
    store = space.cache / "source"
    use(store / "6.12.8-1", 300)
    use(store / "6.12.9-1", 100)
    code = (
        "import sys; from pathlib import Path; from pagewright.host.scratch import claim\n"
        "claim(Path(sys.argv[1])); print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(store / "6.12.9-1")]
    pipe = subprocess.PIPE
    other = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "in\n"
    os.utime(store / ".6.12.9-1.used", (100, 100))
    ensure(space, "6.12.1-1", monkeypatch)
    assert releases(space) == ["6.12.1-1", "6.12.8-1", "6.12.9-1"]
    other.communicate()
    ensure(space, "6.12.1-1", monkeypatch)
    assert releases(space) == ["6.12.1-1", "6.12.8-1"]


def test_release_whose_removal_was_interrupted_is_not_taken_for_whole(space, monkeypatch):
    """Whoever wants it again gets all of it."""
    store = space.cache / "source"
    use(store / "6.12.8-1", 300)
    use(store / "6.12.9-1", 100)

    class Killed(BaseException):
        """What happens."""

    def killed(*arguments, **options):
        raise Killed

    ensure(space, "6.12.1-1", monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(scratch.shutil, "rmtree", killed)
        scratch.prune(store.glob("[0-9]*"), 1)
    assert releases(space) == ["6.12.1-1"]
    assert (ensure(space, "6.12.8-1", monkeypatch).path / "main.c").exists()


# --- Scratch folders and space --------------------------------------------------


def test_scratch_folder_of_a_killed_run_is_swept(tmp_path):
    (tmp_path / "work-killed" / "deep").mkdir(parents=True)
    (tmp_path / "other-kind").mkdir()
    with scratch.scratch(tmp_path, "work-") as folder:
        assert sorted(tmp_path.iterdir()) == [tmp_path / "other-kind", folder]
    assert [path.name for path in tmp_path.iterdir()] == ["other-kind"]


def test_scratch_folder_of_a_run_that_lives_is_left_alone(tmp_path):
    with scratch.scratch(tmp_path, "work-") as first:
        (first / "file").touch()
        with scratch.scratch(tmp_path, "work-") as second:
            assert first != second
        assert (first / "file").exists()


def test_what_another_user_made_of_a_scratch_folders_name_is_left_alone(tmp_path):
    """It is a FIFO, which nobody writes to, or leads to a folder of somebody else."""
    os.mkfifo(tmp_path / "work-fifo")
    (tmp_path / "other").mkdir()
    (tmp_path / "work-link").symlink_to(tmp_path / "other")
    code = (
        "import sys; from pathlib import Path; from pagewright.host.scratch import scratch\n"
        "with scratch(Path(sys.argv[1]), 'work-'): pass"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "work-fifo", "work-link"]


def test_scratch_folder_taken_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    def lock_late(descriptor: int, kind: int) -> None:
        """Let another run take the first folder for a stray."""
        monkeypatch.undo()
        next(tmp_path.iterdir()).rmdir()
        fcntl.flock(descriptor, kind)

    monkeypatch.setattr(scratch.fcntl, "flock", lock_late)
    with scratch.scratch(tmp_path, "work-") as folder:
        assert folder.is_dir()


def test_space_is_asked_for_before_a_download(space, monkeypatch):
    monkeypatch.setattr(disk, "free", lambda path: 2400)
    monkeypatch.setattr(source, "UNPACK_MB", 2500)
    monkeypatch.setattr(source, "_download", None)
    with pytest.raises(DiskFullError) as error:
        ensure(space, "6.12.1-1", monkeypatch)
    assert error.value.what == (
        f"the kernel source needs 2500 MB, and {space.cache / 'source'} has 2400 MB free"
    )


def test_space_is_that_of_the_nearest_folder_that_exists(tmp_path):
    with pytest.raises(DiskFullError, match=f"and {tmp_path} has"):
        disk.require(tmp_path / "not" / "yet", 10**12, "it")
    disk.require(tmp_path / "not" / "yet", 0, "it")
    assert not (tmp_path / "not").exists()


def test_doctor_adds_up_what_folders_on_one_disk_still_need(tmp_path, monkeypatch):
    out, cache = tmp_path / "out", tmp_path / "cache"
    monkeypatch.setattr(disk, "free", lambda path: 30)
    monkeypatch.setattr(disk, "occupied", {out: 5, cache: 50}.get)
    assert disk.shortages({out: 35, cache: 40}) == []
    assert disk.shortages({out: 36, cache: 40}) == [
        f"30 MB free for {out} and {cache}; `make test` needs 31 MB more there"
    ]


def test_doctor_asks_for_space_where_things_are_written(tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr(disk, "shortages", lambda wanted: asked.update(wanted) or ["too little"])
    assert doctor.complaints(Workspace(tmp_path / "repo", tmp_path / "cache"))[-1] == "too little"
    assert list(asked) == [tmp_path / "repo" / "out", tmp_path / "cache"]


def test_folders_on_two_disks_are_looked_at_apart(tmp_path):
    if Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no disk of its own")
    here, there = tmp_path / "out", Path("/dev/shm") / "no-such-cache"
    lines = disk.shortages({here: 10**9, there: 10**9})
    assert [line.split(" free for ")[1].split(";")[0] for line in lines] == [str(here), str(there)]


def test_occupied_space_is_measured(tmp_path):
    (tmp_path / "file").write_bytes(os.urandom(3_000_000))
    assert disk.occupied(tmp_path) in (3, 4)
    assert disk.occupied(tmp_path / "none") == 0
