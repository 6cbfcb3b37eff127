"""What the documents say can be typed and followed: commands, options, names, targets, links."""

from __future__ import annotations

import io
import itertools
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import documents
import pytest
import typer
from docutils.core import publish_doctree

from pagewright.cli import guest, main
from pagewright.host import workspace
from pagewright.host.run import run
from pagewright.kernel import hooks, recipes
from pagewright.machine.strict import Violation
from pagewright.results import experiment, record
from pagewright.results.plan import Choice, Run, plan

SPACE = workspace.find()
DOCUMENTS = [
    SPACE.root / "README.md",
    *sorted((SPACE.root / "docs").glob("*.md")),
    *sorted((SPACE.root / "features").glob("*/*.md")),
    SPACE.root / "tools" / "README.md",
]
TOOLS = SPACE.root / "tools"
# Documents of the kernel tree, in reStructuredText.
OF_THE_KERNEL = sorted((SPACE.root / "features").glob("*/linux/Documentation/**/*.rst"))
# Commands of tools/pagewright that the workbench does not have; both have a map.
ON_SERVERS = ("status", "watch", "check", "advise", "export")
# What goes to pytest.
PYTEST_OPTIONS = (
    "-k",
    "-m",
    "-n",
    "-x",
    "-v",
    "--build",
    "--lg-env",
    "--junit-xml",
    "--strict-machines",
    "-rP",
)
# Those of them that take no value.
FLAGS_OF_PYTEST = ("-x", "-v", "-rP", "--strict-machines")

main.add_commands_of_features()
COMMANDS = typer.main.get_command(main.app)


def typed(text: str, program: str) -> Iterator[list[str]]:
    """Yield the words of each command of a program, in blocks and in the text."""
    lines = re.findall(rf"^(?: {{4}}|\t)\$? ?((?:[A-Z_]+=\S+ )*{program}(?: .*)?)$", text, re.M)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
    for line in [*lines, *(s for s in spans if re.match(rf"([A-Z_]+=\S+ )*{program}(?= |$)", s))]:
        words = shlex.split(line, comments=True)
        yield words[words.index(program) + 1 :]


def params() -> list[object]:
    return [
        pytest.param(file, words, id=f"{file.relative_to(SPACE.root)}: {' '.join(words)}")
        for file in DOCUMENTS
        for words in typed(file.read_text(), "pagewright")
    ]


def known(command: str) -> list[str]:
    """Return the values that a command's first argument may have, if there is a list."""
    builds = recipes.names(SPACE)
    return {
        "build": builds,
        "deb": builds,
        "boot": builds,
        "map": builds,
        "bench": [*experiment.experiments(SPACE), "list"],
        "series": [feature.name for feature in SPACE.features()],
        "kunit": list(guest.suites_of(SPACE)),
        "selftest": [*guest.guest_programs(SPACE), *guest.kernel_selftests(SPACE)],
    }.get(command, [])


@pytest.mark.parametrize(("file", "words"), params())
def test_a_command_can_be_typed(file, words):
    if words and words[0] == "--debug":
        words = words[1:]
    if words and (file.parent == TOOLS or words[0] in ON_SERVERS):
        # The command of the same name that servers have.
        known_to_it = subprocess.run(
            [TOOLS / "pagewright", words[0], "--help"], capture_output=True, text=True, check=True
        )
        for word in words[1:]:
            assert not word.startswith("-") or word in known_to_it.stdout
        return
    if not words or words[0] == "COMMAND":
        return
    if words[0].startswith("-"):
        names = {name for param in COMMANDS.params for name in param.opts}
        assert words[0] in (*names, "--help", "--install-completion", "--show-completion")
        return
    command = COMMANDS.commands[words[0]]
    options = {name: param for param in command.params for name in param.opts}
    value_of = None
    arguments = []
    for word in words[1:]:
        if value_of is not None:
            value_of = None
        elif word.startswith("-"):
            name = word.split("=")[0]
            if words[0] == "test" and name in PYTEST_OPTIONS:
                value_of = name if "=" not in word and name not in FLAGS_OF_PYTEST else None
                continue
            assert name in (*options, "--help"), f"{words[0]} has no option {name}"
            is_flag = name == "--help" or options[name].is_flag
            value_of = None if is_flag or "=" in word else name
        else:
            arguments.append(word)
    if (values := known(words[0])) and arguments and not arguments[0].isupper():
        assert re.sub("-without-.*", "", arguments[0]) in values
    if words[0] == "test":
        for argument in arguments:
            assert (SPACE.root / argument.split("::")[0]).exists()
        if "-k" in words:
            # Where no test has that in its name, pytest ends with a status of its own.
            pytest_too = [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "--collect-only",
            ]
            run([*pytest_too, "-q", *words[1:]], cwd=SPACE.root)
    if words[0] == "bench" and arguments and arguments[0] in experiment.experiments(SPACE):
        parts = experiment.load(SPACE, arguments[0]).parts(False)
        sides = {side.label for part in parts for side in (*part.sides, *part.also)}
        names = {"--part": {part.name for part in parts}, "--side": sides}
        for option, value in itertools.pairwise(words):
            assert option not in names or value in names[option] or value.isupper(), value


def benches() -> Iterator[tuple[str, Choice, str]]:
    """Yield the experiment, the choice and the rest of each row that says what prints a figure."""
    section = documents.section("benchmarks.md", "Which command prints which figure")
    for row in re.findall(r"^\| (?!figures|---).* \| (`pagewright bench .*) \|$", section, re.M):
        [_, command, rest] = row.split("`", 2)
        name, *words = shlex.split(command.removeprefix("pagewright bench"))
        if "--show" in words:
            continue
        given: dict[str, list[str]] = {"--part": [], "--side": [], "--runs": []}
        for option, value in zip(words[::2], words[1::2], strict=True):
            given[option].append(value)
        runs = int(given["--runs"][0]) if given["--runs"] else 0
        yield name, Choice(False, given["--part"], given["--side"], runs), rest


def planned(name: str, choice: Choice) -> list[Run]:
    return plan(experiment.load(SPACE, name), experiment.base_and_patched(), choice)


def test_commands_that_print_figures_take_as_many_boots_as_is_said():
    rows = list(benches())
    assert len(rows) > 10
    for name, choice, rest in rows:
        said = re.match(r", (\d+) boots?\b", rest)
        assert said, (name, choice.parts, rest)
        assert len(planned(name, choice)) == int(said[1]), (name, choice.parts)


@pytest.mark.parametrize("name", record.read(SPACE))
def test_commands_that_print_figures_run_as_often_as_what_is_recorded(name):
    """Each side of the recorded parts, so that a difference has the error that is published."""
    report = record.read(SPACE)[name]
    often: dict[str, int] = {}
    for _, choice, _ in (row for row in benches() if row[0] == name):
        for one in planned(name, choice):
            if one.part.name in report.parts:
                often[one.side.label] = max(often.get(one.side.label, 0), one.total)
    recorded: dict[str, int] = {}
    for figure in report.figures:
        for label, values in figure.runs.items():
            recorded[label] = max(recorded.get(label, 0), len(values))
    # A part that no document has a figure of is in no command.
    assert recorded == {label: often.get(label, number) for label, number in recorded.items()}


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(SPACE.root)))
def test_links_lead_somewhere(file: Path):
    text = file.read_text()
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        # No test can follow one that leads out of the repository.
        assert "://" not in target, target
        there = file.parent / target if target else file
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), f"{target}#{anchor}"


def anchors(file: Path) -> list[str]:
    """Return what the headings of a document are linked to by."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def complaints(text: str) -> str:
    """Return what docutils has to say against a document in reStructuredText."""
    said = io.StringIO()
    settings = {"warning_stream": said, "report_level": 2, "halt_level": 5}
    publish_doctree(text, settings_overrides=settings)
    return said.getvalue()


@pytest.mark.parametrize("file", OF_THE_KERNEL, ids=lambda file: file.name)
def test_a_document_of_the_kernel_tree_can_be_rendered(file: Path):
    assert complaints(file.read_text()) == ""


def test_a_table_with_text_in_the_margin_of_a_column_is_noticed():
    assert "Malformed table" in complaints("===  ===\nfirst  b\n===  ===\na    b\n===  ===\n")


def test_every_feature_is_explained_with_a_picture():
    for feature in SPACE.features():
        text = (feature.path / "explained.md").read_text()
        assert "](explained.svg)" in text
        assert "](explained.md)" in (feature.path / "README.md").read_text()
        picture = ElementTree.parse(feature.path / "explained.svg").getroot()
        assert picture.find("{http://www.w3.org/2000/svg}title") is not None


def test_every_document_can_be_found_from_the_readme():
    found, todo = set(), [SPACE.root / "README.md"]
    while todo:
        file = todo.pop().resolve()
        if file in found:
            continue
        found.add(file)
        if file.suffix == ".md":
            for target in re.findall(r"\]\(([^)#\s:]+)[#)]", file.read_text()):
                todo.append(file.parent / target)
    assert set(DOCUMENTS) <= found


def words_of_the_glossary() -> list[str]:
    text = (SPACE.root / "docs" / "glossary.md").read_text()
    cells = re.findall(r"^\| (?!word |---)(.+?) \| ", text, re.MULTILINE)
    return [word.strip("`") for cell in cells for word in cell.split(", ")]


@pytest.mark.parametrize("word", words_of_the_glossary())
def test_a_word_of_the_glossary_is_used(word: str):
    """In a document that is not the glossary, also as the stem of a verb or in the plural."""
    texts = [file.read_text() for file in DOCUMENTS if file.name != "glossary.md"]
    # A lost CPU is one that "is lost".
    stem = {"lost CPU": r"\blost\b"}.get(word, rf"(?<![\w-]){re.escape(word)}")
    assert any(re.search(stem, " ".join(text.split()), re.IGNORECASE) for text in texts)


def test_the_page_on_porting_names_every_place_of_the_version():
    text = (SPACE.root / "docs" / "porting.md").read_text()
    version = re.escape(SPACE.version)
    pattern = rf'"{version}"|"linux-\w+-{version}"'
    files = (SPACE.root / "pagewright").rglob("*.py")
    places = {f.relative_to(SPACE.root) for f in files if re.search(pattern, f.read_text())}
    assert places
    named = {Path(name) for name in re.findall(r"`(pagewright/[\w/]+\.py)`", text)}
    assert named == places


@pytest.mark.parametrize("feature", SPACE.features(), ids=lambda feature: feature.name)
def test_what_a_readme_says_of_a_hook_names_the_files_that_it_changes(feature):
    """A name is that of a file, with as much of its folders as the README wants."""
    rows = re.findall(
        r"^\| `(hooks/\S+/\d{4})` \|(.*)\|$", (feature.path / "README.md").read_text(), re.M
    )
    patches = sorted(feature.path.glob("hooks/*/*.patch"))
    assert [prefix for prefix, _ in rows] == [
        f"hooks/{patch.parent.name}/{patch.name[:4]}" for patch in patches
    ]
    for prefix, text in rows:
        [patch] = feature.path.glob(f"{prefix}-*.patch")
        files = hooks.patched_files(patch.read_text())
        # Folders may be named too.
        names = [name for name in re.findall(r"`([^`]+)`", text) if not name.endswith("/")]
        ends = {name: [file for file in files if f"/{file}".endswith(f"/{name}")] for name in names}
        assert [name for name, found in ends.items() if not found] == [], patch.name
        assert set(files) == {file for found in ends.values() for file in found}, patch.name


def test_targets_of_make_exist():
    makefile = (SPACE.root / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.M))
    assert {"demo", "test", "clean"} <= targets
    for file in DOCUMENTS:
        for words in typed(file.read_text(), "make"):
            for word in words[:1]:
                assert word.startswith("-") or word in targets, f"{file}: make {word}"


def parameters_of_grub(section: str, folder: Path, **names: str) -> str:
    """Do what a section of the page on installation does to the settings of a cloud's server.

    Args:
        section: the heading.
        folder: where the settings are.
        names: what the commands' placeholders stand for.

    Returns:
        The parameters of the kernel that `update-grub` would write into the menu.
    """
    (folder / "grub.d").mkdir(parents=True, exist_ok=True)
    (folder / "grub").write_text('GRUB_CMDLINE_LINUX="first"\n')
    # As in Debian's images for clouds.
    (folder / "grub.d" / "10_cloud.cfg").write_text('GRUB_CMDLINE_LINUX="console=ttyAMA0"\n')
    typed = documents.scripts(documents.section("install.md", section), server=True)
    # The commands that change the settings, and no others.
    commands = [line for line in "".join(typed).splitlines() if "/etc/default/grub" in line]
    # These are the lines of Debian's grub-mkconfig.
    read = [". /etc/default/grub", "for x in /etc/default/grub.d/*.cfg; do . $x; done"]
    script = "\n".join(["set -e", *commands, *read, 'echo "$GRUB_CMDLINE_LINUX"'])
    for name, value in {"/etc/default": str(folder), **names}.items():
        script = script.replace(name, value)
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_kernel_that_is_tried_reboots_on_a_server_of_a_cloud_too(tmp_path):
    assert parameters_of_grub("Try it once", tmp_path) == "console=ttyAMA0 panic=10"
    # Whoever follows the page twice has the parameter once.
    assert parameters_of_grub("Try it once", tmp_path) == "console=ttyAMA0 panic=10"


def test_a_feature_is_turned_off_on_a_server_of_a_cloud_too(tmp_path):
    for tried in ("", " panic=10"):
        if tried:
            parameters_of_grub("Try it once", tmp_path)
        given = parameters_of_grub("Turn a feature off", tmp_path, PARAMETER="percpu_local_map=0")
        assert set(given.split()) == {"console=ttyAMA0", "percpu_local_map=0", *tried.split()}


def test_every_test_of_these_finds_something():
    """The patterns above still match what the documents look like."""
    readme, using = (SPACE.root / "README.md").read_text(), DOCUMENTS
    assert ["clean", "--cache"] in list(typed(readme, "pagewright"))
    assert ["test"] in list(typed(readme, "make"))
    found = [words for file in using for words in typed(file.read_text(), "pagewright")]
    assert ["boot", "patched-4k", "--run", "uname -a"] in found
    assert len(found) > 40


def all_typed(program: str) -> set[str]:
    """Return the words of all commands of a program in all documents."""
    texts = [file.read_text() for file in DOCUMENTS]
    return {word for text in texts for words in typed(text, program) for word in words}


def test_the_readme_says_of_each_experiment_what_it_takes():
    """In minutes, or in boots if nobody has looked at the clock."""
    readme = (SPACE.root / "README.md").read_text()
    boots = {name: len(planned(name, Choice())) for name in experiment.experiments(SPACE)}
    [row] = re.findall(r"^\| `pagewright bench NAME` .*", readme, re.M)
    assert {name for name in boots if f"`{name}" not in row} == set()
    for name, said in re.findall(r"`([\w-]+)` \((\d+) boots\)", row):
        assert int(said) == boots[name], name
    assert f"| `make bench` | all of these, {sum(boots.values())} boots;" in readme


def test_keys_of_the_strict_machines_reports():
    """The JSON has the fields of a report, which tests/test_strict.py looks at."""
    documented = documents.names("strict-machine.md", "Reports as JSON")
    assert {field.name for field in fields(Violation)} == set(documented)


def test_every_command_is_in_a_document():
    assert {*COMMANDS.commands} <= all_typed("pagewright")


def test_every_target_of_make_is_in_a_document():
    makefile = (SPACE.root / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):  *;", makefile, re.M))
    assert "report" in targets
    # Others begin with these.
    assert targets <= all_typed("make") | {"setup", "setup-packaging", "setup-full"}
