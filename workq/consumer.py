"""The program of a consumer process, which its supervisor starts: `python -m workq.consumer`."""

from __future__ import annotations

from workq.values.begin import begin

if __name__ == "__main__":
    begin()
    from workq.application import load_app
    from workq.worker.process import live

    live(load_app)
