"""`python -m workq`: the same as the command `workq`."""

from __future__ import annotations

from workq.cli import main

main()
