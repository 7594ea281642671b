"""Limits: how many tasks run at once, or start in a time. Their rule is a value (values/limit_rule.py)."""
