"""Commands that make kernels: tree, refresh, series, build."""

from __future__ import annotations

from typing import Annotated

import typer

from pagewright.cli.options import BUILDS_ARE_LISTED, BuildName, FeatureName, FeatureNames
from pagewright.host import workspace
from pagewright.host.progress import say
from pagewright.kernel import build as builder
from pagewright.kernel import recipes, source
from pagewright.kernel import series as composer
from pagewright.kernel import tree as assembled


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (tree, refresh, series):
        app.command()(command)
    app.command(epilog=BUILDS_ARE_LISTED)(build)


def tree(
    discard: Annotated[
        bool, typer.Option("--discard", help="drop edits that were not refreshed into hooks")
    ] = False,
) -> None:
    """Assemble the kernel tree from source, new files and hooks, and print its path."""
    space = workspace.find()
    print(assembled.assemble(space, source.ensure(space), discard))


def refresh() -> None:
    """Write hooks edited in the assembled tree (quilt edit) back to the features."""
    space = workspace.find()
    changed = assembled.refresh(space, source.ensure(space))
    for hook in changed:
        say(f"refreshed {hook}")
    if not changed:
        say("no hook changed")


def series(
    name: FeatureName = None,
    signoff: Annotated[bool, typer.Option("--signoff", help="add your Signed-off-by")] = False,
) -> None:
    """Compose a series of patches for `git am` per feature, into out/6.12/series."""
    space = workspace.find()
    for feature in [space.feature(name)] if name else space.features():
        patches = composer.compose(space, source.ensure(space), feature, signoff)
        say(f"{feature.name}: {len(patches)} patches in {patches[0].parent}")


def build(name: BuildName, without: FeatureNames = None) -> None:
    """Build a kernel into out/6.12/BUILD and print the path of its image."""
    print(builder.ensure(workspace.find(), recipes.without(name, without or [])).image)
