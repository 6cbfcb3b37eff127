# Every target is one line that calls the CLI; `make` alone shows what it is all about.
# `setup` comes first: it is what may ask for root, and nothing after it does.

PAGEWRIGHT = bin/pagewright

demo test test-full bench report shell series refresh: setup
setup:     ; @$(PAGEWRIGHT) setup
demo:      ; @$(PAGEWRIGHT) demo
test:      ; @$(PAGEWRIGHT) test
test-full: ; @$(PAGEWRIGHT) test --full
bench:     ; @$(PAGEWRIGHT) bench
report:    ; @$(PAGEWRIGHT) report
shell:     ; @$(PAGEWRIGHT) boot patched-4k
series:    ; @$(PAGEWRIGHT) series
refresh:   ; @$(PAGEWRIGHT) refresh
clean:     ; @rm -rf out && echo "removed out/; bin/pagewright clean --cache removes what clones share"

.DEFAULT_GOAL := demo
.PHONY: demo test test-full bench report shell series refresh clean setup
