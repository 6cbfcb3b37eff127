"""A feature without anything in it, for tests that make a repository of their own."""

from __future__ import annotations

FEATURE = """\
name = "one"
summary = ""
kconfig = ""
boot_off = ""
builds_on = []
kunit_suites = []
commit = []
"""
