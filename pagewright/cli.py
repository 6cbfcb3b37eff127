"""The commands of `pagewright`."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pagewright import host, workspace
from pagewright.errors import PagewrightError
from pagewright.progress import console, say

app = typer.Typer(
    help="Assemble, build, boot, test and measure arm64 kernel features.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

CpuModel = Annotated[
    str | None, typer.Option(metavar="MODEL", help="QEMU's CPU model; as a rule a Neoverse V3")
]
MemorySize = Annotated[str, typer.Option(metavar="SIZE", help="may be more than the host has")]
Parameters = Annotated[str, typer.Option(metavar="STR", help="more kernel parameters")]
BuildName = Annotated[str, typer.Argument(metavar="NAME", help="a build, such as patched-4k")]


@app.command()
def setup() -> None:
    """Install what this host lacks, with apt; uses sudo unless you are root."""
    host.setup()


@app.command()
def doctor() -> None:
    """Say what is missing on this host, and the command that installs it."""
    lines = host.doctor()
    for line in lines:
        say(line)
    if lines:
        raise typer.Exit(1)
    say(f"this host has all that is needed (QEMU {host.qemu_version()})")


@app.command()
def tree(
    discard: Annotated[
        bool, typer.Option("--discard", help="drop edits that were not refreshed into hooks")
    ] = False,
) -> None:
    """Assemble the kernel tree from source, new files and hooks, and print its path."""
    from pagewright import source
    from pagewright import tree as assembled

    space = workspace.find()
    print(assembled.assemble(space, source.ensure(space), discard))


@app.command()
def refresh() -> None:
    """Write hooks edited in the assembled tree (quilt edit) back to the features."""
    from pagewright import source
    from pagewright import tree as assembled

    space = workspace.find()
    changed = assembled.refresh(space, source.ensure(space))
    for hook in changed:
        say(f"refreshed {hook}")
    if not changed:
        say("no hook changed")


@app.command()
def series(
    signoff: Annotated[bool, typer.Option("--signoff", help="add your Signed-off-by")] = False,
) -> None:
    """Compose a series of patches for `git am` per feature, into out/6.12/series."""
    from pagewright import series as composer
    from pagewright import source

    space = workspace.find()
    for feature in space.features():
        patches = composer.compose(space, source.ensure(space), feature, signoff)
        say(f"{feature.name}: {len(patches)} patches in {patches[0].parent}")


@app.command()
def build(
    name: BuildName,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="FEATURE", help="leave a feature's symbol off (may be repeated)"),
    ] = None,
) -> None:
    """Build a kernel into out/6.12/NAME and print the path of its image.

    The builds: base-4k, patched-4k, debug-4k, base-16k, patched-16k, base-64k,
    patched-64k, base-voluntary-4k, patched-voluntary-4k.
    """
    from pagewright import build as builder

    print(builder.ensure(name, tuple(without or ())).image)


@app.command()
def boot(
    name: BuildName,
    cpu: CpuModel = None,
    smp: Annotated[int, typer.Option(metavar="N", help="number of CPUs")] = 2,
    memory: MemorySize = "1G",
    append: Parameters = "",
    icount: Annotated[
        bool, typer.Option("--icount", help="count instructions: guest time is their number")
    ] = False,
    overlay: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="lay the files of DIR over the guest's root"),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="run it, print its output, exit with its status"),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="seconds until the guest counts as hung")
    ] = 300,
) -> None:
    """Boot a build: a console without --run, or one command with it."""
    from pagewright import machine
    from pagewright.place import DEFAULT_CPU, options_for

    options = options_for(
        name,
        cpu=cpu or DEFAULT_CPU,
        smp=smp,
        memory=memory,
        append=append,
        icount=icount,
        overlay=overlay,
    )
    if run is None:
        raise typer.Exit(machine.console(options))
    with machine.boot(options, timeout=int(timeout)) as guest_machine:
        result = guest_machine.run(run, timeout=timeout)
    sys.stdout.write(result.output)
    sys.stdout.flush()
    raise typer.Exit(result.status)


@app.command("map")
def linear_map(
    name: BuildName,
    rodata: Annotated[
        str | None, typer.Option(metavar="full|on|off", help="the kernel parameter")
    ] = None,
    append: Parameters = "",
    cpu: CpuModel = None,
    memory: MemorySize = "4G",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also draw it, as .svg or .png")
    ] = None,
) -> None:
    """Show how the kernel maps memory: after boot, with modules loaded, and without again."""
    from pagewright import linearmap, mapplot
    from pagewright.place import DEFAULT_CPU, options_for

    if output:
        mapplot.check_suffix(output)
    words = [linearmap.EARLY_KFENCE, f"rodata={rodata}" if rodata else "", append]
    append = " ".join(filter(None, words))
    record = linearmap.record(
        options_for(name, cpu=cpu or DEFAULT_CPU, memory=memory, append=append)
    )
    linearmap.print_histograms(record, Console())
    if output:
        title = f"Linear map of {memory}, {name}" + (f", rodata={rodata}" if rodata else "")
        mapplot.draw(record, title, output)


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="an experiment; all of them without")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write the figures as JSON")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write a page with plots")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also draw the figures of --select")
    ] = None,
    select: Annotated[
        str, typer.Option(metavar="REGEX", help='which figures --svg draws, by "group: name"')
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="leave out the long runs")] = False,
) -> None:
    """Measure an experiment of bench/, as a rule on the base and on the patched kernel."""
    from pagewright import measure, report

    if not name and (json or html or svg):
        raise PagewrightError("a file is written for one experiment", "give its name, too")
    space = workspace.find()
    for one in [name] if name else measure.experiments(space):
        experiment = measure.load(space, one)
        figures = measure.measure(space, experiment, measure.base_and_patched(), quick)
        report.print_tables(figures, Console())
        if json:
            json.write_text(figures.to_json())
        if html:
            html.write_text(report.to_html(figures))
        if svg:
            svg.write_text(report.plot(figures, select))


@app.command()
def demo() -> None:
    """Boot with every feature switched off, then on, and print what each changes."""
    from pagewright import measure, report

    space = workspace.find()
    features = space.features()
    for name in measure.experiments(space):
        experiment = measure.load(space, name)
        if all(part.sides for part in experiment.parts(True)):
            continue
        sides = measure.off_and_on(features)
        figures = measure.measure(space, experiment, sides, quick=True, only_these=True)
        say(f"\n{space.feature(experiment.feature).summary}.")
        report.print_tables(figures, Console())


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def test(
    context: typer.Context,
    full: Annotated[bool, typer.Option("--full", help="the slow and wide tests too")] = False,
) -> None:
    """Run the tests; further arguments go to pytest."""
    import pytest

    from pagewright import build as builder
    from pagewright import guest

    root = workspace.find().root
    arguments = [f"--config-file={root / 'pyproject.toml'}", *context.args]
    if full:
        arguments.append("--full")
    if not context.args:
        arguments += [str(root / "tests"), str(root / "features")]
        # Tests build what they need; up front there is progress to see.
        for name in builder.TESTED:
            builder.ensure(name)
        guest.ensure()
    raise typer.Exit(int(pytest.main(arguments)))


@app.command()
def clean() -> None:
    """Remove everything generated in this clone; the cache that clones share stays."""
    space = workspace.find()
    shutil.rmtree(space.root / "out", ignore_errors=True)
    say(f"removed out/; downloads and the compiler cache are in {space.cache}")


def complain(text: str, style: str = "") -> None:
    """Print text as it is, on standard error."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Run the command line; errors are printed plainly, Ctrl-C ends quietly."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except PagewrightError as error:
        complain(f"pagewright: {error.what}", style="bold red")
        for text in filter(None, (error.details, error.todo)):
            complain(text)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted", highlight=False)
        sys.exit(130)
    except OSError as error:
        complain(f"pagewright: {error}", style="bold red")
        sys.exit(1)
