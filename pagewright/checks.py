"""The kernel's own style checker, run on our files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pagewright.run import run

DICTIONARY = Path("/usr/lib/python3/dist-packages/codespell_lib/data/dictionary.txt")

# The kernel's idioms for exception tables and alternatives pass assembler operands to a
# macro; checkpatch takes their % for an operator, in the kernel's own files too.
FALSE_ALARM = re.compile(r"CHECK: spaces preferred around that '%'")
IDIOM = re.compile(r"_ASM_EXTABLE_|ALTINSTR_ENTRY")

# It knows asm volatile, but not the form that counts as one instruction when inlining.
ASM_INLINE = re.compile(r"WARNING: Use of volatile is usually wrong(.|\n)*asm_inline volatile")

# The kernel's own parameters, in a line that had to be wrapped anew.
WRAPPED = re.compile(r"WARNING: Use of volatile is usually wrong(.|\n)*xchg_case_##name##sz\(")

# The kernel's own __cold is empty where it would be wrong for a function; see there.
COLD_LABEL = re.compile(r"WARNING: Prefer __cold(.|\n)*#define __pcp_cold")

# Trace events have a layout of their own, which their document prescribes.
TRACE_LAYOUT = re.compile(
    r"CHECK: (Alignment should match|Lines should not end)(.|\n)*include/trace/events/"
)

# Macros that define functions for every size of operand, as asm/percpu.h's own do.
GENERATOR = re.compile(
    r"(CHECK: Macro argument reuse|CHECK: spaces preferred around that '\*'"
    r"|ERROR: Macros with complex values|WARNING: macros should not use a trailing semicolon"
    r"|WARNING: EXPORT_SYMBOL\(foo\); should|WARNING: Missing a blank line after declarations"
    r"|ERROR: space required after that ',')(.|\n)*percpu_local_ops\."
)


def checkpatch(tree: Path, files: Sequence[Path], *options: str) -> list[str]:
    """Return what `checkpatch --strict` has to say about files or patches.

    Args:
        tree: a kernel tree.
        files: patches, or with the option -f whole files.
        options: more options for checkpatch.
    """
    command = ["perl", tree / "scripts" / "checkpatch.pl", "--strict", "--no-tree"]
    command += ["--codespell", "--codespellfile", DICTIONARY, *options, *files]
    output = run([str(word) for word in command], check=False)
    if "total: " not in output:
        return [f"checkpatch did not run: {output}"]
    complaints = []
    # Of several files, each has a heading, with no empty lines around it.
    for block in re.split(r"\n\n|^-+\n.*\n-+\n", output, flags=re.M):
        if re.match(r"(ERROR|WARNING|CHECK): ", block) and not (
            (FALSE_ALARM.match(block) and IDIOM.search(block))
            or ASM_INLINE.match(block)
            or WRAPPED.match(block)
            or COLD_LABEL.match(block)
            or TRACE_LAYOUT.match(block)
            or GENERATOR.match(block)
        ):
            complaints.append(block)
    return complaints
