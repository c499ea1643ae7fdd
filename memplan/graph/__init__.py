"""What a training graph is: nodes, tensors, phases, stashes, modules."""
