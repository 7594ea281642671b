"""Schedules: tasks that come again by the clock."""
