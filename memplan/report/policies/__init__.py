"""Policies: how is a plan told to PyTorch?

Takes a :class:`memplan.planning.plan_file.PlanFile`; gives the text of a Python file, and what of
the plan is not in it.
"""
