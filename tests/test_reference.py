"""docs/reference.md names what the kernel sources of the features declare: no more, and no less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pagewright.host import workspace

SPACE = workspace.find()
TEXT = (SPACE.root / "docs" / "reference.md").read_text()
FILES = [
    *(f for f in (SPACE.root / "features").glob("*/linux/**/*.[ch]")),
    *(SPACE.root / "features").glob(f"*/hooks/{SPACE.version}/*.patch"),
]
# What the kernel's macros name a permission.
ACCESS = {0o444: "read", 0o400: "read", 0o644: "read, write", 0o200: "write", 0: "no"}


def code() -> Iterator[tuple[Path, str]]:
    """Yield each file's code: new files whole, of hooks the lines that are added."""
    for file in FILES:
        text = file.read_text()
        if file.suffix == ".patch":
            added = re.findall(r"^\+(?!\+\+ )(.*)$", text, re.MULTILINE)
            text = "\n".join(added)
        yield file, text


def found(pattern: str) -> Iterator[tuple[Path, str, re.Match[str]]]:
    """Yield each match in the code, with its file and the file's text."""
    for file, text in code():
        for match in re.finditer(pattern, text, re.MULTILINE):
            yield file, text, match


def rows(heading: str, columns: int) -> dict[str, list[str]]:
    """Return the cells of the tables below a heading, by the name in the first one."""
    section = TEXT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    cells = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            name, *rest = (cell.strip() for cell in line.strip("|").split(" | "))
            assert len(rest) == columns - 1, line
            name = name.strip("`")
            assert name not in cells, f"{name} is there twice"
            cells[name] = rest
    return cells


def module_parameters() -> dict[str, str]:
    """Return the parameters of modules and of what is built in, with their access."""
    access = {}
    pattern = r"^module_param(?:_named|_cb)?\((\w+),(.*)\);"
    for file, text, match in found(pattern):
        prefix = re.search(r'define MODULE_PARAM_PREFIX "(\w+)\."', text)
        name = f"{prefix[1] if prefix else file.stem}.{match[1]}"
        access[name] = ACCESS[int(match[2].split(",")[-1], 8)]
    return access


def test_boot_parameters():
    declared = module_parameters()
    for _, _, match in found(r'(?:early_param|__setup)\("([\w.]+)=?"'):
        declared[match[1]] = "no"
    # Another name of a field of an ID register, in the list of such names.
    for _, _, match in found(r'^\s*\{ "(arm64\.\w+)",'):
        declared[match[1]] = "no"
    for _, _, match in found(r"^core_param\((\w+),.* (\d+)\);"):
        declared[match[1]] = ACCESS[int(match[2], 8)]
    assert len(declared) > 15
    assert {name: cells[1] for name, cells in rows("Boot parameters", 4).items()} == declared


def test_defaults_of_boot_parameters():
    """Those that are numbers, with an initial value in the source."""
    documented = rows("Boot parameters", 4)
    values = {}
    for file, text, match in found(r"^module_param(?:_named)?\((\w+),(?: (\w+),)? (\w+),"):
        prefix = re.search(r'define MODULE_PARAM_PREFIX "(\w+)\."', text)
        variable = match[2] if "named" in match[0] else match[1]
        initial = re.search(rf"^static unsigned int {variable} = (\d+);", text, re.MULTILINE)
        if initial:
            values[f"{prefix[1] if prefix else file.stem}.{match[1]}"] = initial[1]
    assert len(values) > 5
    for name, value in values.items():
        assert documented[name][0].endswith(f"; {value}"), f"{name}: {value}"


def test_files_of_sysfs():
    folders = {}
    for file, _, match in found(r'kobject_create_and_add\("(\w+)", kernel_kobj\)'):
        folders[feature_of(file)] = f"/sys/kernel/{match[1]}"
    named = {match[1]: match[2] for _, _, match in found(r'^#define (\w+_SYSFS) "(\w+)"$')}
    for file, _, match in found(r'struct attribute_group \w+ = \{\n\s*\.name = "?(\w+)"?,'):
        folders[feature_of(file)] = f"/sys/kernel/mm/{named.get(match[1], match[1])}"
    assert any("mm_kobj" in text for _, text in code())
    declared = {}
    for file, _, match in found(r"__ATTR\((\w+), (\d+),"):
        declared[f"{folders[feature_of(file)]}/{match[1]}"] = ACCESS[int(match[2], 8)]
    for file, _, match in found(r"^static struct kobj_attribute \w+ = __ATTR_RO\((\w+)\);"):
        declared[f"{folders[feature_of(file)]}/{match[1]}"] = "read"
    # Macros of a file that end in __ATTR_RO().
    for file, _, match in found(r"^[A-Z]+_ATTR\((\w+), \D"):
        declared[f"{folders[feature_of(file)]}/{match[1]}"] = "read"
    assert len(declared) > 10
    assert {name: cells[0] for name, cells in rows("sysfs", 3).items()} == declared


def test_files_of_sysfs_are_in_the_abi_documents():
    """That of its folder says of each file whether it can be written."""
    described = {}
    for file in (SPACE.root / "features").glob("*/linux/Documentation/ABI/testing/*"):
        text = file.read_text()
        [folder] = re.findall(r"^What:\t+(/\S+)/$", text, re.MULTILINE)
        for name, body in re.findall(r"^\t\t(\w+):((?:.+\n)+)", text, re.MULTILINE):
            [access] = re.findall(r"\((RO|RW)\)$", body, re.MULTILINE)
            described[f"{folder}/{name}"] = {"RO": "read", "RW": "read, write"}[access]
    assert {name: cells[0] for name, cells in rows("sysfs", 3).items()} == described


def feature_of(file: Path) -> str:
    """Return the feature that a file belongs to."""
    return file.relative_to(SPACE.root / "features").parts[0]


def test_counters_of_vmstat():
    declared = set()
    for file in FILES:
        if file.suffix == ".patch":
            _, _, part = file.read_text().partition("\n+++ b/mm/vmstat.c\n")
            declared |= set(re.findall(r'^\+\t"(\w+)",', part.split("\n--- ")[0], re.MULTILINE))
    assert len(declared) > 5
    assert rows("/proc/vmstat", 2).keys() == declared


def test_tracepoints():
    declared = {}
    for _, text, match in found(r"^(?:TRACE_EVENT|DEFINE_EVENT)\((?:\w+, )?(\w+),"):
        system = re.search(r"define TRACE_SYSTEM (\w+)", text)
        assert system
        # The fields are those that the event's text prints; an event of a class has the class's.
        after = text[text.rfind("DECLARE_EVENT_CLASS", 0, match.end()) :]
        body = text[match.start() :] if match[0].startswith("TRACE") else after
        printed = re.search(r'TP_printk\("([^"]*)"', body)
        assert printed
        fields = ", ".join(f"`{field}`" for field in re.findall(r"(\w+)=", printed[1]))
        declared[f"{system[1]}:{match[1]}"] = fields
    assert len(declared) > 2
    assert {name: cells[1] for name, cells in rows("Tracepoints", 3).items()} == declared


def test_files_of_debugfs():
    declared = {match[1] for _, _, match in found(r'debugfs_create_dir\("(\w+)"')}
    declared |= {match[1] for _, _, match in found(r'fault_create_debugfs_attr\("(\w+)"')}
    access = {}
    for _, _, match in found(r'debugfs_create_file(?:_unsafe)?\("(\w+)", (\d+)'):
        access[match[1]] = ACCESS[int(match[2], 8)]
    documented = rows("debugfs", 3)
    assert documented.keys() == declared | access.keys()
    assert {name: documented[name][0] for name in access} == access
    of_no_symbol = [name for name, (_, said) in documented.items() if "`" not in said]
    assert of_no_symbol == [], "none of them is in every kernel"


def test_ways_to_die():
    declared = {match[1] for _, _, match in found(r"\bCRASHTYPE\((\w+)\)")}
    assert declared == set(re.findall(r"`(CPU_PAUSE_\w+)`", TEXT))


def test_symbols_and_their_defaults():
    declared = {}
    for _, _, match in found(r"^config (\w+)\n((?:[\t].*\n|\n)*)"):
        default = re.search(r"^\tdefault (\w+)", match[2], re.MULTILINE)
        asked = re.search(r'^\t(?:bool|tristate) "', match[2], re.MULTILINE)
        followed = re.search(r"^\tdef_bool (?!y)", match[2], re.MULTILINE)
        otherwise = "n" if asked else "follows others" if followed else "selected"
        declared[match[1]] = default[1] if default else otherwise
    assert len(declared) > 10
    assert {name: cells[0] for name, cells in rows("Kconfig", 3).items()} == declared


def test_every_document_of_the_kernel_tree_is_linked():
    for file in (SPACE.root / "features").glob("*/linux/Documentation/**/*.rst"):
        assert f"](../{file.relative_to(SPACE.root)})" in TEXT
