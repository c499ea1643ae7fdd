"""Plans that hold in anyone's ``InferenceSession(path)``, whatever its optimizer does.

Takes an opened model, a budget and a strategy; gives a model with fences and pins in it, and what
its first run and every later one need. Tuned sessions do without this room.
"""
