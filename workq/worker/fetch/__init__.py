"""Fetch: how tasks come to a worker; from three stores, or from one database."""
