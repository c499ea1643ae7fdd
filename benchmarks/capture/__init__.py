"""What `memplan capture` and `memplan grad` make, beside PyTorch."""
