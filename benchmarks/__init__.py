"""Firekeep beside its peers, in one run on one machine. `make bench`, or `python -m benchmarks --help`."""
