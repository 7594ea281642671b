"""Demonstrations: real work on real data through the real queue, with a process killed on the way.

`workq demo reindex` runs as shown in `play.py`; `reindex.py` is the application that its worker serves. The rest of
workq imports nothing of this.
"""
