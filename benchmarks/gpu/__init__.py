"""Training graphs on the GPU."""
