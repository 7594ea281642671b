"""Recovery: what returns the tasks of the dead and the hints that were lost."""
