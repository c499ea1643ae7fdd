"""Policies: how is a plan told to PyTorch, JAX or MaxText?

Takes a :class:`memplan.planning.plan_file.PlanFile`; gives the text of a Python or YAML file, and
what of the plan is not in it.
"""
