"""The page of all experiments, and the recorded figures that README.md is made of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import permutations
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pagewright.cli.main import app
from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.workspace import Workspace
from pagewright.results import chapters, pages, plots, record, report
from pagewright.results.experiment import Side, base_and_patched, experiments, load
from pagewright.results.figures import Figure, Report
from pagewright.results.journal import Conditions, Entry, Journal
from pagewright.results.plan import Choice, plan

SPACE = workspace.find()
BROWSER_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
    *("--allow-file-access-from-files", "--enable-logging=stderr"),
)
# Sets the title of a window to how wide the page in its frame is, and to the options of commands
# that are broken: their parts are in several lines. Text that is folded away has no place at all.
MEASURES = r"""
const page = document.querySelector("iframe").contentDocument;
const broken = new Set();
const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  for (const found of texts.currentNode.data.matchAll(/(?<!\S)--[\w-]+/g)) {
    const range = page.createRange();
    range.setStart(texts.currentNode, found.index);
    range.setEnd(texts.currentNode, found.index + found[0].length);
    const places = [...range.getClientRects()].map((place) => place.top);
    if (new Set(places).size > 1) broken.add(found[0]);
  }
}
document.title = `${page.documentElement.scrollWidth} wide; broken: ${[...broken].join(" ")};`;
"""
# An experiment of two parts; what its guests print is written into a journal below.
SAMPLE = """
from pagewright.results.experiment import Experiment, Part, Published, Quantity, Work

WORKS = [Work("touch", "true")]
EXPERIMENT = Experiment(
    "sample",
    "one <feature>",
    "What a sample costs",
    lambda quick: [Part("small", {"smp": 2}, WORKS), Part("wide", {}, WORKS)],
    lambda side, work, values: [Quantity("counts", work, "faults", int(values["n"]))],
    published=[
        Published("touching", "half", "a server", "counts", "touch"),
        Published("time", "-1 %", "a server", remark="Time is not counted."),
    ],
    limits=["What it costs in <time>."],
)
"""
TABLE = """| faults | {{ figure("counts", "touch").values.base | short }} |
{{ percent(figure("counts", "touch"), "patched", "base") }}
{{ command() }}: {{ origin() }}
"""
README = """# Title

<!-- figures of sample: `pagewright report --record` writes this table -->
<!-- end of figures -->

Text.
"""


class Outline(HTMLParser):
    """Checks that elements are closed in order, and collects anchors and what is loaded."""

    EMPTY = ("meta", "link", "br", "img", "hr", "input")

    def __init__(self) -> None:
        """Begin without an open element."""
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.anchors: set[str] = set()
        self.targets: set[str] = set()

    def handle_starttag(self, tag, attrs):
        """Note an element."""
        self.tags.add(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        values = dict(attrs)
        self.anchors |= {values["id"]} if "id" in values else set()
        self.targets |= {value for name, value in attrs if name in ("href", "src") and value}

    def handle_startendtag(self, tag, attrs):
        """Note an element that SVG closes at once."""
        self.tags.add(tag)

    def handle_endtag(self, tag):
        """Compare with the element that is open."""
        assert self.open.pop() == tag


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """Save the seconds that a drawing takes where nobody looks at it."""
    monkeypatch.setattr(plots, "bars", lambda figures: "<svg></svg>")


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """Return a repository that has nothing but one experiment, a table of it, and a README.md."""
    made = Workspace(tmp_path, tmp_path / "cache")
    for name, text in (
        ("bench/sample.py", SAMPLE),
        ("bench/sample.md.j2", TABLE),
        ("README.md", README),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "docs").mkdir()
    return made


def measured(
    space: Workspace,
    part: str,
    quick: bool = False,
    runs: int = 2,
    commit: str = "abc",
    work: str = "touch",
    sides: Sequence[Side] = (),
) -> None:
    """Write the journal of a bench of one part."""
    journal = Journal(space.out / "bench" / "sample.jsonl")
    conditions = Conditions("6.12.1-1", "", "", "QEMU 10", "", "")
    for number in range(1, runs + 1):
        for side in sides or base_and_patched():
            n = {"base": 1000}.get(side.label, 500) + number
            works = {work: [{"n": str(n)}]}
            entry = Entry(
                "sample", part, side, number, quick, conditions, {"smp": 2}, commit, "2026", works
            )
            journal.append(entry, {})


def text_of(page: str) -> str:
    """Return what a page says, without its elements."""
    return re.sub(r"<[^>]*>", "", page)


def page_of(space: Workspace) -> str:
    return pages.experiments_page(chapters.chapters(space, record.read(space)), "commit abc")


@pytest.fixture
def record_it(space, monkeypatch) -> Callable[[], Result]:
    """Run `pagewright report --record` in the made-up repository."""
    monkeypatch.setattr(workspace, "find", lambda: space)
    monkeypatch.setattr("pagewright.cli.report.commit", lambda space: "abc")

    def run() -> Result:
        done = CliRunner().invoke(app, ["report", "--record"], catch_exceptions=False)
        assert done.exit_code == 0
        return done

    return run


def test_what_was_not_run_is_there_with_its_command(space):
    [chapter] = chapters.chapters(space, {})
    assert (chapter.status, chapter.shown) == ("not run", [])
    assert chapter.missing == {
        "small: base; patched": "pagewright bench sample --part small --resume",
        "wide: base; patched": "pagewright bench sample --part wide --resume",
    }
    text = text_of(page_of(space))
    assert "not run" in text
    assert "pagewright bench sample --part wide --resume" in text
    assert "not measured yet" in text


def test_a_figure_stands_beside_the_published_one(space):
    measured(space, "small")
    page = re.sub(r"\s+", " ", page_of(space))
    # sqrt(0.5 / 2 + 0.5 / 2)
    difference = "-500 ± 0.71"
    assert re.search(rf'data-head="published">half</td>.*data-head="here">{difference}', page)
    assert 'data-head="here">none</td> <td>Time is not counted.' in page
    assert "measured, in part" in page
    assert "--part small --resume" not in text_of(page)
    assert "--part wide --resume" in text_of(page)
    assert "2 boots of each side" in page
    for words in ("linux 6.12.1-1", "QEMU 10", "smp=2", "abc, 2026", "What it costs in &lt;time"):
        assert words in page


def test_the_figures_are_those_that_bench_prints(space):
    measured(space, "small")
    shown = chapters.measured_here(space, load(space, "sample"))
    assert shown
    [sheet] = report.sheets(shown)
    cells = "".join(f"<td>{cell}</td>" for cell in sheet.rows[0])
    assert "1,002" in cells
    assert f"<tr>{cells}</tr>" in page_of(space)


def test_the_page_is_complete_in_itself_and_well_formed(space, monkeypatch):
    monkeypatch.undo()
    measured(space, "small")
    page = page_of(space)
    outline = Outline()
    outline.feed(page.replace("<!doctype html>", ""))
    assert outline.open == []
    assert {"table", "svg", "details"} <= outline.tags
    assert not outline.tags & {"script", "link", "img", "iframe", "object"}
    assert "one &lt;feature&gt;" in page
    # Links lead to places in the page, and no style loads anything.
    assert {t for t in outline.targets if not t.startswith("#")} == set()
    assert {t[1:] for t in outline.targets} <= outline.anchors
    assert not re.search(r"url\((?!#)|@import", page)


def test_what_this_clone_has_not_measured_comes_from_the_record(space):
    measured(space, "small")
    made = chapters.measured_here(space, load(space, "sample"))
    assert made
    record.write(space, {"sample": made})
    (space.out / "bench" / "sample.jsonl").unlink()
    [chapter] = chapters.chapters(space, record.read(space))
    assert chapter.status == "recorded, in part"
    assert chapter.shown[0].report == made
    # Quick runs stand before what is recorded, and do not take its place.
    measured(space, "small", quick=True, runs=1)
    [chapter] = chapters.chapters(space, record.read(space))
    assert [one.report.quick for one in chapter.shown] == [True, False]
    assert "small sizes" in chapter.beside(chapter.experiment.published[0])


def test_what_is_recorded_in_full_stands_beside_what_is_measured_in_part(space):
    """Otherwise a bench of one part would take the figures of the others from the page."""
    for part in ("small", "wide"):
        measured(space, part)
    whole = chapters.measured_here(space, load(space, "sample"))
    assert whole
    (space.out / "bench" / "sample.jsonl").unlink()
    measured(space, "small")
    [chapter] = chapters.chapters(space, {"sample": whole})
    assert chapter.status == "measured, in part"
    assert [one.source for one in chapter.shown] == [chapters.HERE, chapters.RECORDED]
    measured(space, "wide")
    [chapter] = chapters.chapters(space, {"sample": whole})
    assert [one.source for one in chapter.shown] == [chapters.HERE]


def test_what_is_recorded_is_what_the_journal_says(space, record_it):
    measured(space, "small")
    done = record_it()
    assert "sample  measured, in part" in done.stdout
    assert (space.root / "out" / "report" / "index.html").exists()
    data = json.loads((space.root / "docs" / "figures.json").read_text())
    figures = data["sample"]["figures"]
    assert figures[0]["runs"] == {"base": [1001.0, 1002.0], "patched": [501.0, 502.0]}
    readme = (space.root / "README.md").read_text()
    assert "table -->\n| faults | 1,002 |\n-49.9 ± 0.1 %\npagewright" in readme
    assert readme.endswith("<!-- end of figures -->\n\nText.\n")
    # A second time there is nothing to write; small sizes are never recorded.
    shutil.rmtree(space.out / "bench")
    measured(space, "wide", quick=True)
    assert "wrote" not in record_it().output
    assert (space.root / "README.md").read_text() == readme


def test_what_would_spoil_the_record_is_left_out_and_named(space, record_it):
    def recorded() -> str:
        return record_it().output

    measured(space, "small", commit="abc+")
    measured(space, "wide")
    assert "sample is not recorded: it was measured with changes" in (said := recorded())
    assert "(abc+, abc)" in said
    assert record.read(space) == {}
    (space.out / "bench" / "sample.jsonl").unlink()
    for part in ("small", "wide"):
        measured(space, part)
    recorded()
    before = record.path(space).read_text()
    assert '"wide"' in before
    shutil.rmtree(space.out / "bench")
    measured(space, "small", runs=1)
    assert "sample is not recorded: wide: base; patched would be lost" in recorded()
    assert record.path(space).read_text() == before


def test_parts_that_were_not_measured_here_stay_in_the_record(space, record_it):
    file = space.root / "bench" / "sample.py"
    # Each part has figures of its own; the table of the first part has a row of the second one.
    file.write_text(
        SAMPLE.replace("WORKS)]", "[Work('wide', 'true')])]").replace(
            "work, values: [", "work, values: [Quantity('more', work, 'faults', 1), "
        )
    )

    def recorded() -> Report:
        assert "not recorded" not in record_it().output
        return record.read(space)["sample"]

    measured(space, "small", commit="abc")
    measured(space, "wide", commit="def", work="wide")
    whole = recorded()
    shutil.rmtree(space.out / "bench")
    measured(space, "wide", runs=1, commit="ghi", work="wide")
    again = recorded()
    assert list(again.parts) == ["small", "wide"]
    assert again.commits == {"small": ["abc"], "wide": ["ghi"]}
    assert again.machines == whole.machines
    order = [("more", "touch"), ("more", "wide"), ("counts", "touch"), ("counts", "wide")]
    for one, runs in ((whole, {2}), (again, {1, 2})):
        assert [(figure.group, figure.name) for figure in one.figures] == order
        assert {len(figure.runs["base"]) for figure in one.figures} == runs
    # A part that the experiment has no more does not stay.
    file.write_text(file.read_text().replace('"small"', '"little"'))
    template = space.root / "bench" / "sample.md.j2"
    template.write_text(TABLE.replace('"counts", "touch"', '"counts", "wide"'))
    assert list(recorded().parts) == ["wide"]


def test_a_row_of_two_parts_keeps_the_columns_that_were_not_measured_here(space, record_it):
    third = Side("third", "patched-4k")
    file = space.root / "bench" / "sample.py"
    file.write_text(
        SAMPLE.replace("import Experiment", "import Side, Experiment").replace(
            '"wide", {}, WORKS', f'"wide", {{}}, WORKS, [{third}]'
        )
    )
    measured(space, "small", commit="abc")
    for commit in ("def", "ghi"):
        assert "not recorded" not in record_it().output
        shutil.rmtree(space.out / "bench")
        measured(space, "wide", runs=3, commit=commit, sides=[third])
    [figure] = record.read(space)["sample"].figures
    assert {label: len(runs) for label, runs in figure.runs.items()} == {
        "base": 2,
        "patched": 2,
        "third": 3,
    }
    assert figure.parts == ["small", "wide"]
    # And back, with what both parts have in the record.
    shutil.rmtree(space.out / "bench")
    measured(space, "small", runs=1, commit="jkl")
    record_it()
    made = record.read(space)["sample"]
    assert made.commits == {"small": ["jkl"], "wide": ["def"]}
    assert [len(runs) for runs in made.figures[0].runs.values()] == [1, 1, 3]


def test_a_table_tells_the_origin_of_its_own_figures(space):
    """Other parts may have been run more often, or at other commits."""
    file = space.root / "bench" / "sample.py"
    file.write_text(
        SAMPLE.replace("WORKS)]", "[Work('wide', 'true')])]").replace(
            'Quantity("counts"', 'Quantity("wide" if work == "wide" else "counts"'
        )
    )
    measured(space, "small", runs=3, commit="abc")
    measured(space, "wide", runs=1, commit="def", work="wide")

    def last_line() -> str:
        made = chapters.measured_here(space, load(space, "sample"))
        assert made
        assert made.commit == "abc, def"
        return record.table(space, made).splitlines()[-1]

    assert last_line() == (
        "pagewright bench sample --part small --runs 3: "
        "3 boots of each side, QEMU 10, linux 6.12.1-1, commit abc"
    )
    template = space.root / "bench" / "sample.md.j2"
    template.write_text(template.read_text().replace('"counts", "touch"', '"wide", "wide"'))
    assert last_line() == (
        "pagewright bench sample --part wide: "
        "1 boot of each side, QEMU 10, linux 6.12.1-1, commit def"
    )
    template.write_text(
        '{% if figure("counts", "touch") %}'
        + TABLE.replace('"counts", "touch"', '"wide", "wide"')
        + "{% endif %}"
    )
    assert last_line() == (
        "pagewright bench sample --runs 3: "
        "1 to 3 boots of each side, QEMU 10, linux 6.12.1-1, commit abc, def"
    )


def test_a_table_that_cannot_be_made_changes_nothing(space):
    measured(space, "small")
    made = chapters.measured_here(space, load(space, "sample"))
    assert made
    made.figures = [Figure("other", "touch", "faults", {"base": [1.0]})]
    with pytest.raises(PagewrightError, match="asks for 'touch' of 'counts'"):
        record.write(space, {"sample": made})
    assert not (space.root / "docs" / "figures.json").exists()
    assert (space.root / "README.md").read_text() == README


def test_a_damaged_record_is_one_clear_error(space):
    for text in ("[]", "{", '{"sample": {"sides": []}}'):
        record.path(space).write_text(text)
        with pytest.raises(PagewrightError, match="does not have recorded figures"):
            record.read(space)


def test_the_tables_of_the_readme_are_those_of_the_recorded_figures():
    readme = (SPACE.root / "README.md").read_text()
    assert record.tables_in(readme)
    reports = record.read(SPACE)
    assert record.with_tables(SPACE, readme, reports) == readme
    # And figures that are changed by hand are noticed, each experiment's.
    for name in record.tables_in(readme):
        if name in reports:
            changed = {
                **reports,
                name: replace(reports[name], figures=[*map(twice, reports[name].figures)]),
            }
            assert record.with_tables(SPACE, readme, changed) != readme


def test_the_pictures_show_the_recorded_figures():
    drawn = 0
    for name, recorded in record.read(SPACE).items():
        if not (selection := load(SPACE, name).picture):
            continue
        drawing = (SPACE.root / "docs" / f"{name}.svg").read_text()
        texts = re.findall(r">\s*([^<]+?)\s*</text>", drawing)
        shown = [f for f in recorded.figures if re.search(selection, f"{f.group}: {f.name}")]
        wanted = [report.number(value) for figure in shown for value in figure.values.values()]
        assert sorted(text for text in texts if text in wanted) == sorted(wanted)
        drawn += 1
    assert drawn


def twice(figure: Figure) -> Figure:
    """Return a figure with twice as much of everything."""
    runs = {label: [2 * run for run in values] for label, values in figure.runs.items()}
    return replace(figure, runs=runs)


@pytest.mark.parametrize("name", record.tables_in((SPACE.root / "README.md").read_text()))
def test_a_template_makes_the_table_that_the_readme_has(name, monkeypatch):
    """Its words are the same, whatever the figures are."""
    experiment = load(SPACE, name)
    labels = [run.side.label for run in plan(experiment, base_and_patched(), Choice())]
    runs = {label: [1.0] for label in labels}
    made = Report(name, "", "", "", False, [])
    monkeypatch.setattr(Report, "find", lambda self, group, row: Figure(group, row, "", runs))
    readme = (SPACE.root / "README.md").read_text()
    [block] = re.findall(rf"<!-- figures of {name}: .*?-->\n(.*?)<!-- end", readme, re.DOTALL)

    def words(table: str) -> list[str]:
        rows = [line for line in table.splitlines() if line.startswith("|")]
        return [rows[0], *(row.split("|")[1] for row in rows)]

    assert words(record.table(SPACE, made)) == words(block)


def test_recorded_figures_are_in_full_of_a_known_commit_and_read_back():
    for name, one in record.read(SPACE).items():
        assert one.experiment == name
        assert not one.quick
        assert "+" not in one.commit, f"{name} was measured with changes"
        for origin in (one.kernels, one.emulators, one.machines, one.commits):
            assert all(origin.values())
            assert origin.keys() == one.parts.keys()
        for figure in one.figures:
            assert figure.parts
            assert figure.runs.keys() <= {side for part in figure.parts for side in one.parts[part]}
        assert Report.read(json.loads(json.dumps(asdict(one)))) == one


def test_all_sides_of_a_recorded_table_have_done_the_same_work():
    """A boot in which something else happened meanwhile shows by what no TLB makes more or less."""
    found = record.read(SPACE)["tlb-reach"].figures
    of_work = [f for f in found if f.unit == "accesses" or f.name == "instructions of the kernel"]
    same = [figure for figure in of_work if len(figure.values) > 1]
    assert same
    for figure in same:
        means = figure.values.values()
        # With HVO to look for a head reads more struct pages, by less than a half.
        assert max(means) < 1.5 * min(means), (figure.group, figure.name, figure.values)


@pytest.mark.parametrize("name", experiments(SPACE))
def test_published_figures_are_compared_with_sides_that_there_are(name):
    experiment = load(SPACE, name)
    labels = {run.side.label for run in plan(experiment, base_and_patched(), Choice())}
    recorded = record.read(SPACE).get(name)
    assert experiment.limits
    for one in experiment.published:
        if not one.group:
            assert one.remark
            continue
        assert {one.side, one.reference} <= labels
        if recorded and recorded.parts.keys() == {part.name for part in experiment.parts(False)}:
            assert recorded.find(one.group, one.name), one


def test_beside_a_published_figure_a_document_has_what_the_page_has(monkeypatch):
    """Its row is named as on the page, and has the difference as a report writes it.

    Another table may have a row of that name, of other kernels. Each difference that has an error
    there is one of the same figure, too.
    """
    monkeypatch.setattr(chapters, "measured_here", lambda space, experiment: None)
    recorded = record.read(SPACE)
    for chapter in chapters.chapters(SPACE, recorded):
        experiment = chapter.experiment
        document = SPACE.root / "features" / experiment.feature / "README.md"
        # An experiment of all features has a document of its own.
        if not document.exists():
            document = SPACE.root / "docs" / "tlb-model.md"
        for one in experiment.published:
            if not one.group:
                continue
            here = chapter.beside(one).replace("\N{NO-BREAK SPACE}", " ")
            in_percent = re.search(r"\((.*)\)", here)
            said = re.escape(in_percent[1] if in_percent else here)
            rows = [r for r in document.read_text().splitlines() if r.startswith(f"| {one.what} |")]
            assert any(re.search(rf"(?<![\d.+-]){said}", row) for row in rows), (here, rows)
            known = {
                record.percent(figure, *sides)
                for figure in recorded[experiment.name].figures
                if figure.name == one.name
                for sides in permutations(figure.runs, 2)
            }
            assert set(re.findall(r"[-+]?[\d.]+ ± [\d.]+ %", " ".join(rows))) <= known, one.what


def recorded_page(monkeypatch) -> str:
    """Return the page of a clone that has measured nothing: of what docs/figures.json has."""
    monkeypatch.setattr(chapters, "measured_here", lambda space, experiment: None)
    made = chapters.chapters(SPACE, record.read(SPACE))
    assert len([chapter for chapter in made if chapter.shown]) == len(record.read(SPACE)) > 1
    return pages.experiments_page(made, "commit abc")


def test_no_figure_of_the_page_is_zero_with_a_sign(monkeypatch):
    text = text_of(recorded_page(monkeypatch))
    assert re.search(r"[+-]0\.[1-9]", text)
    # Names of parts end so, as in `large-level-0`.
    assert re.findall(r"(?<!-level)[+-]0(?:\.0+)?(?![\d.,]).*", text) == []


# The drawings of all that is recorded take a while.
@pytest.mark.parametrize("page", ["sample", pytest.param("recorded", marks=pytest.mark.full)])
def test_a_browser_opens_the_page_without_an_error(page, space, tmp_path, monkeypatch):
    monkeypatch.undo()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("there is no chromium; `pagewright setup --full` installs it")
    measured(space, "small")
    # A page folds long tables away; they are not to be too wide when somebody opens them.
    text = page_of(space) if page == "sample" else recorded_page(monkeypatch)
    (tmp_path / "index.html").write_text(text.replace("<details>", "<details open>"))
    for width in (390, 1280):
        # A window is at least 500 wide, so the phone is a frame. What is wider than its page
        # would be cut off: the frame tells how wide it became.
        frame = tmp_path / "frame.html"
        frame.write_text(
            f'<iframe src="index.html" style="width:{width}px;height:900px;border:0"></iframe>'
            f"<script>window.onload = () => {{{MEASURES}}}</script>"
        )
        done = subprocess.run(
            [browser, *BROWSER_OPTIONS, frame.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert "CONSOLE" not in done.stderr
        found = re.search(r"<title>(\d+) wide; broken: (.*);</title>", done.stdout)
        # A scroll bar takes a little of it.
        assert found and width - 20 <= int(found[1]) <= width
        assert not found[2], f"options are broken at a width of {width}: {found[2]}"
