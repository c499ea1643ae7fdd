"""Training graphs of the networks at published sizes (``full``) or small (``tiny``), as files.

    python -m benchmarks.graphs DIR --only vit --forward

writes the training graphs that ``grad`` makes of them, or their forward graphs, for the benchmarks
of plans. PyTorch exports the forward graph, with parameters as graph inputs, so the files are
small. Needs torch and onnxscript; about two minutes on two cores.
"""

from __future__ import annotations

import argparse
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

import memplan
from benchmarks.nets import FULL, TINY
from benchmarks.record import Row, arguments, run


def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """Training mode as ONNX has it; the exporter's own translation normalizes by the old mean."""
    from onnxscript import opset20 as op

    if not training:
        y = op.BatchNormalization(x, weight, bias, mean, variance, epsilon=eps)
        return y, mean, variance, mean, variance
    y, mean, variance = op.BatchNormalization(
        x, weight, bias, mean, variance, epsilon=eps, momentum=1 - momentum, training_mode=1
    )
    return y, mean, variance, mean, variance


class _Functional(nn.Module):
    """Parameters and buffers as inputs; loss and new buffers as outputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = [module]  # in a list: not a submodule, so that nothing of it is exported
        self.parameter_names = [name for name, _ in module.named_parameters()]
        self.buffer_names = [name for name, _ in module.named_buffers()]

    def forward(self, parameters: Any, buffers: Any, inputs: Any) -> Any:
        state = {name: b.clone() for name, b in zip(self.buffer_names, buffers, strict=True)}
        known = dict(zip(self.parameter_names, parameters, strict=True))
        loss = torch.func.functional_call(self.inner[0], known | state, inputs)
        return (loss, *state.values())


def exported(module: nn.Module, inputs: tuple[Tensor, ...], opset: int = 20) -> onnx.ModelProto:
    """The forward graph of a module that gives its loss, as PyTorch's exporter writes it.

    Parameters and buffers are graph inputs; metadata name the parameters. The first output is the
    loss, then come the buffers' new values.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    names = [*parameters, *buffers, *(f"batch_{k}" for k in range(len(inputs)))]
    values = tuple(p.detach() for p in parameters.values()), tuple(buffers.values()), inputs
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Functional(module),
            values,
            dynamo=True,
            opset_version=opset,
            input_names=names,
            verbose=False,
            custom_translation_table={
                torch.ops.aten._native_batch_norm_legit_functional.default: batch_norm
            },
        )
        assert program is not None
        program.save(buffer)
    model = onnx.load_from_string(buffer.getvalue())
    _forget_source(model)
    model.metadata_props.add(key="parameters", value="\n".join(parameters))
    return model


def _forget_source(model: onnx.ModelProto) -> None:
    """Leave out file names and line numbers of this machine: the same network, the same file."""
    for node in model.graph.node:
        kept = [item for item in node.metadata_props if not item.key.endswith(".stack_trace")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)


def training_graph(forward: onnx.ModelProto) -> onnx.ModelProto:
    """Loss, new buffers and all gradients, checked as strictly as ONNX can."""
    named = {item.key: item.value for item in forward.metadata_props}
    loss = forward.graph.output[0].name
    model = memplan.gradients(forward, loss, named["parameters"].splitlines())
    onnx.checker.check_model(model, full_check=True)
    return model


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Write ``NAME.onnx`` for every network."""
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, found in (FULL if options.size == "full" else TINY).items():
        if not options.only or any(part in name for part in options.only):
            model = exported(found.make(), found.batch())
            if not options.forward:
                model = training_graph(model)
            onnx.save(model, options.folder / f"{name}.onnx")
            yield {"graph": name, "nodes": len(model.graph.node)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = arguments("graphs", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", default=[], help="part of a name, repeatable")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--forward", action="store_true", help="the forward graphs")
    run(parser, rows, argv)


if __name__ == "__main__":
    main()
