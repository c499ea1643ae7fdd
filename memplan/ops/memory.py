"""Alias, in-place and determinism of operators, per execution provider.

The lists are measured, not guessed: ``tables/<provider>.json`` is written by ``tools/probe_ort``
from probes on the runtime itself. An operator that no probe knows is treated as neither aliasing
nor in-place, which can only over-count, and is named among the assumptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from memplan.ops.kernels import COPY_OPS

# Draw random numbers: a second run gives other values.
RANDOM_OPS = frozenset(
    {
        ":RandomNormal",
        ":RandomNormalLike",
        ":RandomUniform",
        ":RandomUniformLike",
        ":Multinomial",
        ":Bernoulli",
        ":Dropout",
        "com.microsoft:BitmaskDropout",
        "com.microsoft:BiasDropout",
        "com.microsoft:BitmaskBiasDropout",
    }
)
# Change something beyond their outputs: a second run is not the same step.
EFFECT_OPS = frozenset(
    {
        "com.microsoft:InPlaceAccumulator",
        "com.microsoft:InPlaceAccumulatorV2",
        "com.microsoft:AdamWOptimizer",
        "com.microsoft:SGDOptimizerV2",
        "com.microsoft:YieldOp",
        "com.microsoft:PythonOp",
        "com.microsoft:PythonOpGrad",
        "org.pytorch.aten:ATen",
    }
)
CONTROL_FLOW_OPS = frozenset({":If", ":Loop", ":Scan", ":SequenceMap"})

# Kernels that read element k of an input of the output's shape before they write element k of the
# output, and never again: key → those inputs. They may write over such an input, which is more
# than the runtime does on its own. With more than two inputs Sum, Max and Min go over the output
# several times (``element_wise_ops.cc``), so they may not. Tried in tests/ort/test_state.py.
OVERWRITES = {
    **dict.fromkeys((":Add", ":Sub", ":Mul", ":Div", ":Sum", ":Max", ":Min"), (0, 1)),
    **dict.fromkeys((":Neg", ":Identity"), (0,)),
    ":Where": (1, 2),
}
_VARIADIC = frozenset({":Sum", ":Max", ":Min"})

# They may put what they read into a sequence without a copy.
SEQUENCE_OPS = frozenset(
    {":SequenceConstruct", ":SequenceInsert", ":SplitToSequence", ":ConcatFromSequence"}
)

# Outputs that a kernel does not make when the graph leaves their name empty, and without which it
# gives the same bits as with them, whatever it reads (measured: tests/ort/test_same_kernels.py).
OPTIONAL_OUTPUTS = {
    ":LayerNormalization": (1, 2),
    ":SimplifiedLayerNormalization": (1,),
    ":Dropout": (1,),
    ":MaxPool": (1,),
    "com.microsoft:SkipLayerNormalization": (1, 2, 3),
}

# How many outputs must stay listed, with or without a name, as the kernel is chosen by that:
# ``MaxPool`` alone takes NaN for no number and the lowest finite one for minus infinity.
LISTED_OUTPUTS = {":MaxPool": 2}

# Inputs that a CPU kernel lays out anew when the session starts, if the graph holds them as
# constants: its products then add in another order than those of a matrix that a node makes, an
# ``Identity`` included. The float32 ones are measured, as are those that give the same bits either
# way and are not here (Conv, RNN, MultiHeadAttention, ...): tests/ort/test_same_kernels.py.
PACKED_INPUTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys((":MatMul", ":Gemm"), (1,)),
    **dict.fromkeys((":LSTM", ":GRU"), (1, 2)),
    **dict.fromkeys(
        (
            *("com.microsoft:FusedMatMul", "com.microsoft:FusedGemm", "com.microsoft:Attention"),
            *("com.microsoft:QAttention", "com.microsoft:MatMulNBits", "com.microsoft:MatMulFpQ4"),
            *("com.microsoft:DynamicQuantizeMatMul", "com.microsoft:MatMulIntegerToFloat"),
        ),
        (1,),
    ),
    "com.microsoft:DynamicQuantizeLSTM": (1, 2),
}


def packed_inputs(key: str, provider: str) -> tuple[int, ...]:
    """The slots in which a constant leads to other sums than the same numbers made by a node."""
    return PACKED_INPUTS.get(key, ()) if provider == "cpu" else ()


@dataclass(frozen=True, slots=True)
class MemorySemantics:
    """The measured tables of one provider. Pairs are (output index, input index).

    ``runtime`` is what they were measured on, as ``onnxruntime 1.31.1``.
    """

    provider: str
    runtime: str
    alias: Mapping[str, tuple[tuple[int, int], ...]]
    inplace: Mapping[str, tuple[tuple[int, int], ...]]
    known: frozenset[str]

    def alias_input(self, key: str, output: int) -> int | None:
        """The input slot whose buffer output ``output`` always shares, or None."""
        for made, given in self.alias.get(key, ()):
            if made == output:
                return given
        return None

    def inplace_inputs(self, key: str, output: int) -> tuple[int, ...]:
        """The input slots whose buffer output ``output`` may take over when they die here."""
        rows = self.inplace.get(key)
        return tuple([given for made, given in rows if made == output]) if rows else ()


@cache
def semantics(provider: str) -> MemorySemantics:
    """The tables of ``provider`` (``cpu`` or ``cuda``)."""
    text = files("memplan.ops").joinpath(f"tables/{provider}.json").read_text()
    data = json.loads(text)

    def pairs(field: str) -> dict[str, tuple[tuple[int, int], ...]]:
        return {key: tuple((o, i) for o, i in rows) for key, rows in data[field].items()}

    alias, inplace = pairs("alias"), pairs("inplace")
    known = frozenset(alias) | frozenset(inplace) | frozenset(data["not_inplace"])
    return MemorySemantics(provider, data["runtime"], alias, inplace, known)


def has_effects(key: str) -> bool:
    """Whether an operator may do more than make its outputs; of an unknown one, nobody knows.

    Those of ONNX do not, by its specification.
    """
    if key in EFFECT_OPS or key.startswith((":", "ai.onnx.ml:")):
        return key in EFFECT_OPS
    return not (key in RANDOM_OPS or key in semantics("cpu").known)


def overwritable_inputs(key: str, inputs: int) -> tuple[int, ...]:
    """The slots that a node with so many ``inputs`` may write its output over as it reads them."""
    if key in _VARIADIC and inputs > 2:
        return ()
    return OVERWRITES.get(key, ())


def refusal(key: str, provider: str = "cpu") -> str | None:
    """Why an operator is never recomputed, or None if recomputing it gives the same bits."""
    if key in RANDOM_OPS:
        return "draws random numbers"
    if key in EFFECT_OPS:
        return "has effects beyond its outputs"
    if key in CONTROL_FLOW_OPS:
        return "has a body (control flow)"
    if key.removeprefix(":") in COPY_OPS:
        return "copies between device and host"
    # The CPU table is the widest; an operator in it is a plain function of its inputs anywhere.
    if key not in semantics("cpu").known and key not in semantics(provider).known:
        return "unknown operator: it may draw random numbers or have effects"
    return None
