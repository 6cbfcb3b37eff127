"""The commands of `pagewright`, grouped as the package is; main.py starts them."""
