"""What a run leaves beside itself, which never outlives it: child processes and scratch folders.

It answers where temporary files go and how another process is started. ``scratch`` gives folders;
``child`` takes the name of a module and gives a process that runs it; ``parallel`` takes a function
and many items, and gives the answers of many processes.
"""
