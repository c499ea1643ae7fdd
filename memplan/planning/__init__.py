"""What to keep, what to recompute, in which order; and the proof that it fits."""
