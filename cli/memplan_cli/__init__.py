"""The ``memplan`` command: one module per subcommand, loaded when it is called."""
