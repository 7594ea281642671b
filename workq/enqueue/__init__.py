"""Enqueue: a task is recorded, and its hint is published."""
