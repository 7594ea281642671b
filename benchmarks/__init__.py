"""workq beside its peers: the same tasks, the same servers, one run.

`python -m benchmarks --help`, or `make bench`. How it is measured stands in `benchmarks/README.md`.
"""
