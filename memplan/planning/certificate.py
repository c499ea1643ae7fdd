"""What a certified bound says of a plan, in words: one wording for all reports."""

from __future__ import annotations

# A gap, in percentage points, that is rounding and nothing else.
_OPTIMAL_POINTS = 0.0005


def no_bound(kind: str) -> bool:
    """Whether a bound of this kind says nothing."""
    return kind.startswith(("none", "trivial"))


def certificate(extra: float, bound: float, kind: str) -> str:
    """How far a plan is from the best possible.

    Args:
        extra: extra time of the plan, as a fraction of the step.
        bound: no plan takes less.
        kind: what the bound holds for; ``order-free``: for plans in every order.
    """
    if no_bound(kind):
        return f"distance from optimal unknown ({'no bound' if kind == 'trivial' else kind})"
    order = "in any order" if kind == "order-free" else kind
    proof = f"(certified: no plan {order} costs less than {100 * bound:+.2f}%)"
    gap = 100 * (extra - bound)
    if gap < _OPTIMAL_POINTS:
        return f"optimal {proof}"
    return f"at most {gap:.{2 if gap >= 0.01 else 3}f} percentage points from optimal {proof}"
