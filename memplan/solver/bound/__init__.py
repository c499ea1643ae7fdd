"""bound."""
