"""Values as people and tools read them: text, HTML, traces, snapshots."""
