"""What a run leaves beside itself, which never outlives it: child processes and scratch folders.

It answers where temporary files go and how another process is started. ``scratch`` gives folders;
``child`` calls a function in a process of its own; ``parallel`` takes a function and many items,
and gives the answers of many processes.
"""
