"""A run of its own beside the user's data: what a fault suite and a measurement have in common.

namespace.py  the tables, queues and keys of one run: made, and removed
fleet.py      the workers of a run: real supervisors with real consumer processes
"""
