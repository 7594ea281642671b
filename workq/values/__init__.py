"""Values: what every part speaks of. They import nothing of ours but each other."""
