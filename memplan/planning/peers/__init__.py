"""Published planners of the field, on the same problem and the same memory model as our search.

Each is a named strategy. They decide as their sources do; what they decide is then evaluated like
any other sequence, so that costs and peaks can be compared.
"""
