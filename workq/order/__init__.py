"""Order: the tasks of one key run one after the other."""
