"""The program of a consumer process, which its supervisor starts: `python -m workq.consumer`."""

from __future__ import annotations

from workq.begin import begin

if __name__ == "__main__":
    begin()
    from workq.worker import live

    live()
