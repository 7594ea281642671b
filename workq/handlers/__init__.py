"""Handlers: what a user writes, and what a handler may ask for while it runs."""
