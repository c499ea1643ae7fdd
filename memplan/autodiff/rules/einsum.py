"""Einsum: for each operand, the product of the gradient and the other operands."""

from __future__ import annotations

import string

from memplan.autodiff.emit.context import Context
from memplan.autodiff.emit.gradient_registry import Gradient, Gradients, gradient
from memplan.autodiff.emit.value import Value
from memplan.errors import ModelError
from memplan.shapes.tensor_type import Dim, TensorType


@gradient("Einsum")
def einsum(ctx: Context) -> Gradients:
    """dXᵢ sums dY times the other operands over all letters that Xᵢ does not have."""
    terms, answer = _terms(ctx)
    for term in terms:
        if len(set(term)) < len(term):
            raise ModelError(
                f"no gradient is known for Einsum '{ctx.node.name}' with a repeated letter in one "
                f"operand: {ctx.attribute('equation', '')}",
                "take the diagonal by other operators",
            )
    return [_operand(ctx, terms, answer, slot) for slot in range(len(terms))]


def _operand(ctx: Context, terms: list[str], answer: str, slot: int) -> Gradient:
    target, own = ctx.tensors[slot], terms[slot]
    sizes: dict[str, Dim] = {}
    for term, value in zip(terms, ctx.tensors, strict=True):
        for letter, dim in zip(term, value.shape, strict=True):
            sizes[letter] = dim if sizes.get(letter, 1) == 1 else sizes[letter]

    def build() -> Value:
        others = [k for k in range(len(terms)) if k != slot]
        sources = [answer, *(terms[k] for k in others)]
        there = [letter for letter in own if any(letter in term for term in sources)]
        equation = f"{','.join(sources)}->{''.join(there)}"
        grad = ctx.dy
        if others or there != list(answer):
            values = [ctx.tensors[k] for k in others]
            shape = tuple(sizes[letter] for letter in there)
            result = TensorType(ctx.dy.dtype, shape)
            grad = ctx.op("Einsum", ctx.dy, *values, equation=equation, result=result)
        # A letter that only this operand has was summed over: the same to all.
        missing = [k for k, letter in enumerate(own) if letter not in there]
        grad = ctx.unsqueeze(grad, missing)
        if not missing:  # a dimension of 1 that was broadcast
            grad = ctx.sum_to(grad, grad, target)
        elif grad.type.shape != target.type.shape:
            sized = tuple(1 if k in missing else dim for k, dim in enumerate(target.shape))
            like = Value(target.name, TensorType(target.dtype, sized), target.emitter)
            grad = ctx.sum_to(grad, grad, like)
        return ctx.expand_like(grad, target)

    return build


def _terms(ctx: Context) -> tuple[list[str], str]:
    """The letters of every operand and of the result; an ellipsis becomes letters of its own."""
    equation = ctx.attribute("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    free = [letter for letter in string.ascii_letters if letter not in equation]
    wide = max(
        (value.rank - len(term.replace("...", "")) for term, value in _dotted(ctx, terms)),
        default=0,
    )
    dots = "".join(free[:wide])
    full = []
    for term, value in zip(terms, ctx.tensors, strict=True):
        count = value.rank - len(term.replace("...", ""))
        full.append(term.replace("...", dots[len(dots) - count :]))
    return full, right.replace("...", dots)


def _dotted(ctx: Context, terms: list[str]) -> list[tuple[str, Value]]:
    pairs = zip(terms, ctx.tensors, strict=True)
    return [(term, value) for term, value in pairs if "..." in term]
