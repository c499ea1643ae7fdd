"""Orders: the same nodes, each as often as before, in an order that needs less memory.

Answers: how low the peak gets by order alone. Takes a problem and a sequence of it. Gives another
sequence of the same nodes, in which everyone reads what it read.
"""
