"""The solver: the abstract rematerialization problem, and everything that answers it.

Answers: which sequence of nodes, some of them repeated, keeps a memory budget at the least cost,
and how cheap any such sequence can be. Takes a :class:`~memplan.solver.problem.Problem`: flat
arrays of numbers, nothing of ONNX. Gives a :class:`~memplan.solver.problem.Decision`. Of memplan it
imports ``errors`` and ``processes`` only, so it can be used alone.
"""
