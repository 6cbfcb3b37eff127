# Every target is one line that calls the CLI; `make` alone shows what it is all about.

PAGEWRIGHT = .venv/bin/pagewright

demo test test-full bench shell series refresh: ready
demo:      ; @$(PAGEWRIGHT) demo
test:      ; @$(PAGEWRIGHT) test
test-full: ; @$(PAGEWRIGHT) test --full
bench:     ; @$(PAGEWRIGHT) bench
shell:     ; @$(PAGEWRIGHT) boot patched-4k
series:    ; @$(PAGEWRIGHT) series
refresh:   ; @$(PAGEWRIGHT) refresh
clean:     ; @test ! -x $(PAGEWRIGHT) || $(PAGEWRIGHT) clean
ready:     $(PAGEWRIGHT) ; @$(PAGEWRIGHT) setup

# The commands' own environment; made again when its list of packages changes.
$(PAGEWRIGHT): pyproject.toml ; @./bootstrap

.DEFAULT_GOAL := demo
.PHONY: demo test test-full bench shell series refresh clean ready
