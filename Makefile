# Every target is one line that calls the CLI; `make` alone shows what it is all about.
# `setup` comes first: it is what may ask for root, and nothing after it does.

PAGEWRIGHT = bin/pagewright

# What `make deb` builds (docs/install.md), and the key that signs the repository of `make repo`.
CONFIG = cloud-arm64
KEY =

demo test bench report shell series refresh: setup
deb repo: setup-packaging
test-full: setup-full
setup:     ; @$(PAGEWRIGHT) setup
setup-packaging: ; @$(PAGEWRIGHT) setup --packaging
setup-full: ; @$(PAGEWRIGHT) setup --full
demo:      ; @$(PAGEWRIGHT) demo
test:      ; @$(PAGEWRIGHT) test
test-full: ; @$(PAGEWRIGHT) test --full
bench:     ; @$(PAGEWRIGHT) bench
report:    ; @$(PAGEWRIGHT) report
shell:     ; @$(PAGEWRIGHT) boot patched-4k
series:    ; @$(PAGEWRIGHT) series
deb:       ; @$(PAGEWRIGHT) deb $(CONFIG)
repo:      ; @$(PAGEWRIGHT) repo --key "$(KEY)"
refresh:   ; @$(PAGEWRIGHT) refresh
clean:     ; @$(PAGEWRIGHT) clean

.DEFAULT_GOAL := demo
.PHONY: demo test test-full bench report shell series deb repo refresh clean setup setup-packaging setup-full
