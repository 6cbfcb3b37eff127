"""The workbench: assembles, builds, boots, tests and measures arm64 kernel features.

Data flows through the modules in this order: source, tree, build, guest,
machine, measure, report; cli holds the commands.
"""
