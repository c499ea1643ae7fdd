"""Free savings on ready training graphs, before any recomputation: one pass per module."""
