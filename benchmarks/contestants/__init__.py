"""One file for each contestant, and what they share. Runs in the environment of each: see `play.py` and `task.py`."""
