"""What the operator book says of an operator: one entry, one facet per question.

An operator of which a facet says nothing gets the careful answer: it is not chunked, writes over
nothing it reads, keeps all its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memplan.ops.instance import Formula, Instance, Work

WHOLE = -1
"""In place of an axis: every chunk reads the whole tensor, or none of it is read."""
SUM = -2
"""In place of an axis of an output: a chunk makes a summand of it."""


@dataclass(frozen=True, slots=True)
class Use:
    """How an operator may run on a part of its inputs: axes of inputs and outputs by slot.

    Parts of the inputs along their axes give the part of the outputs along theirs, or a summand of
    an output. ``shape_slot``: the input that holds the shape of the output, and is another per
    chunk. ``addend``: the input that is added to the sum once (the third of a Gemm). ``least``: how
    long a chunk must be along the axis of the inputs so that each element is computed as in the
    whole.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    shape_slot: int = -1
    addend: int = -1
    least: int = 1

    @property
    def sums(self) -> bool:
        """Whether the chunks' outputs are summands."""
        return SUM in self.makes


AxisRule = Callable[[Instance], Iterator[Use]]
"""Every use of an operator. Where the shape of a result is needed and not known, there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An entry of the book. Measured tables (:mod:`memplan.ops.memory`) stand beside it.

    How it computes:
        axes: how parts of the outputs depend on parts of the inputs.
        product: it multiplies two matrices.
        work: multiply-adds of one execution, where these are more than its elements.
        view: the first output has the elements of the first input, in order, in another shape.
        moves: each element of the first output is one of the first input's.
        stays: as long as the shape stays, so does every element of the first input.
        alone: of a single input, it gives that input.
        reads_shape: it reads the shape of what it is given and no element, and the runtime runs it
            as soon as it can.

    Memory:
        shares: (output, input) that share a buffer in some opset, beyond what tables measured.
        overwrites: inputs of the output's shape of which the kernel reads element k before it
            writes element k of its only output, and never again: it may write over such an input,
            which is more than the runtime does on its own.
        in_passes: with more than two inputs it goes over the output several times.
        into_sequence: it may put what it reads into a sequence without a copy.
        scratch, scratch_cuda: what the CPU's, or CUDA's, kernel takes while it runs.
        scratch_in_halves: in two equal requests.

    Outputs and inputs:
        optional_outputs: not made when the graph leaves their name empty; the others are the same
            bits with them or without, whatever it reads (tests/ort/test_same_kernels.py).
        listed_outputs: how many must stay listed, with or without a name, as the kernel is chosen
            by that.
        packed_inputs: those that a CPU kernel lays out anew when the session starts, if the graph
            holds them as constants: its products then add in another order than those of a matrix
            that a node makes, an ``Identity`` included. The float32 ones are measured, as are those
            that give the same bits either way and have none (Conv, RNN, MultiHeadAttention, ...):
            tests/ort/test_same_kernels.py.

    Running it again:
        random: it draws random numbers: a second run gives other values.
        shared_stream: it draws them from the stream that all such nodes of a session share.
        effects: it changes something beyond its outputs: a second run is not the same step.
        body: it runs a graph of its own.
    """

    axes: AxisRule | None = None
    product: bool = False
    work: Work | None = None
    view: bool = False
    moves: bool = False
    stays: bool = False
    alone: bool = False
    reads_shape: bool = False
    shares: tuple[tuple[int, int], ...] = ()
    overwrites: tuple[int, ...] = ()
    in_passes: bool = False
    into_sequence: bool = False
    scratch: Formula | None = None
    scratch_cuda: Formula | None = None
    scratch_in_halves: bool = False
    optional_outputs: tuple[int, ...] = ()
    listed_outputs: int = 1
    packed_inputs: tuple[int, ...] = ()
    random: bool = False
    shared_stream: bool = False
    effects: bool = False
    body: bool = False


def aligned(shape: tuple[int, ...], rank: int, axis: int, size: int) -> int:
    """The axis of an operand that broadcasting lays on ``axis`` of a result of ``rank``
    dimensions; WHOLE where it has none, or repeats its only element."""
    own = axis - (rank - len(shape))
    return own if own >= 0 and shape[own] == size and size > 1 else WHOLE


def whole(instance: Instance, first: int = 1) -> tuple[int, ...]:
    """The inputs from a slot on, read whole."""
    return tuple(WHOLE for _ in instance.inputs[first:])


def alike(instance: Instance, axis: int) -> tuple[int, ...]:
    """All outputs, along one axis."""
    return tuple(axis for _ in instance.outputs)
