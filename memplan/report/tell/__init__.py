"""What is there to be said of a result? A module per command, whose ``tell_*`` gives a Report."""
