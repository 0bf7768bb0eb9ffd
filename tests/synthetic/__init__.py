"""Runs of a small trainer in numpy, made on the spot: see README.md."""
