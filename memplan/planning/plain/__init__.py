"""Plans that hold in anyone's ``InferenceSession(path)``, which changes and reorders what it loads.

Takes an opened model, a request for a plan and a strategy. Gives the plan and a
:class:`~memplan.planning.plain.finish_fences.PlainModel`: a file whose fences and pins keep the
session to the plan, with the peaks of the first run and of later ones
(:func:`~memplan.planning.plain.plain_plan.plan_plain`).
"""
