"""What happens to a forward graph before the reverse pass.

Takes a forward ``ModelProto``, and gives it flat and with all types (``annotate``), with operators
replaced by simpler ones where they have no gradient rule (``expand``), and its nodes as the reverse
pass is to see them, several as one operator (``patterns``).
"""
