"""Limits: how many tasks run at once, or in a time."""
