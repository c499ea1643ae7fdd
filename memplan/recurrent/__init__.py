"""Loops in a training graph: what a forward loop stores for its backward loop, and storing less."""
