"""The small builds that have percpu-local alone (tiny-* in base/VERSION/builds.toml)."""

from __future__ import annotations

import re

from pagewright.host import workspace
from pagewright.kernel import recipes

_BUILDS = recipes.names(workspace.find())

# Page sizes and numbers of address bits, such as 4k-39: each is the build tiny-4k-39.
MATRIX = [match[1] for name in _BUILDS if (match := re.fullmatch(r"tiny-(\d+k-\d+)", name))]
# KASAN's kinds of tags: each KIND is the build tiny-4k-52-KIND.
KASAN = [match[1] for name in _BUILDS if (match := re.fullmatch(r"tiny-4k-52-(kasan-.*)", name))]

# Without them the tests that boot each would be none, and nobody would notice.
assert MATRIX, "base/VERSION/builds.toml has no tiny-* builds"
assert KASAN, "base/VERSION/builds.toml has no tiny-* builds with KASAN"
