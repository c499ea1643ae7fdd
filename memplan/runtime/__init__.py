"""The only room that runs models: sessions, inputs, measured peak and time, comparison."""
