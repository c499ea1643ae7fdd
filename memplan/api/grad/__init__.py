"""grad."""
