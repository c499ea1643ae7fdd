"""A bound for the file's order alone: a program in which time is aggregated between checkpoints."""
