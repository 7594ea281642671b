"""The program of a consumer process, which its supervisor starts: `python -m workq.worker`."""

from __future__ import annotations

from workq.values.begin import begin

if __name__ == "__main__":
    begin()
    from workq.worker.process import live

    live()
