"""Networks that several benchmarks measure."""
