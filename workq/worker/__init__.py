"""Worker: one consumer process, from the hint to the settled task."""
