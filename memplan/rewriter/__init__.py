"""The new graph: clones in plan order, and the checks before it is written."""
