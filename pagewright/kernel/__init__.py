"""Source package -> assembled tree -> Image, modules, vmlinux; and the patch series."""
