"""What each operator does to memory and what it costs: one registry per question."""
