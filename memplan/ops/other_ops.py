"""Operators that are no plain function of what they read: random numbers, effects, bodies; and
those whose outputs are no tensors."""

from __future__ import annotations

from collections.abc import Mapping

from memplan.ops.facets import Operator

_RANDOM = (
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Multinomial", "Bernoulli"),
)
_EFFECTS = (
    *("InPlaceAccumulator", "InPlaceAccumulatorV2", "AdamWOptimizer", "SGDOptimizerV2"),
    *("YieldOp", "PythonOp", "PythonOpGrad"),
)
_DROPOUTS = ("BitmaskDropout", "BiasDropout", "BitmaskBiasDropout")
_SEQUENCES = ("SequenceConstruct", "SequenceInsert", "SplitToSequence", "ConcatFromSequence")

OPERATORS: Mapping[str, Operator] = {
    **dict.fromkeys((f":{op}" for op in _RANDOM), Operator(random=True)),
    # A view in inference, before opset 12.
    ":Dropout": Operator(random=True, shared_stream=True, shares=((0, 0),), optional_outputs=(1,)),
    **dict.fromkeys(
        (f"com.microsoft:{op}" for op in _DROPOUTS), Operator(random=True, shared_stream=True)
    ),
    **dict.fromkeys((f"com.microsoft:{op}" for op in _EFFECTS), Operator(effects=True)),
    "org.pytorch.aten:ATen": Operator(effects=True),
    **dict.fromkeys((":If", ":Loop", ":Scan"), Operator(body=True)),
    ":SequenceMap": Operator(body=True, into_sequence=True),
    **dict.fromkeys((f":{op}" for op in _SEQUENCES), Operator(into_sequence=True)),
    **dict.fromkeys((":Optional", ":OptionalGetElement"), Operator(shares=((0, 0),))),
}
