"""Packages and guest programs -> the root file system of a guest."""
