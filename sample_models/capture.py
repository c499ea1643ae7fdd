"""Capture one PyTorch training step (forward, loss, backward, optimizer) as one ONNX graph.

How it works:

1. The step is written as a pure function of its tensors: parameters, buffers, batch and optimizer
   state in; loss, gradients (or updated parameters and state) and updated buffers out.
2. ``make_fx`` records it, autograd included, as one graph of ATen operators.  Backward operators
   which ONNX has no translation for are decomposed on the way (see ``_decompositions``).
3. The graph is freed of in-place updates and copies, and exported by ``torch.onnx``.
4. The ONNX nodes are tidied: the exporter's bulky metadata goes, the path of the module that a
   node (forward or backward) belongs to is written as ``memplan.module``, and every Dropout gets
   its own seed.
"""

from __future__ import annotations

import ast
import contextlib
import unittest.mock
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnxscript.optimizer
import torch
from torch import Tensor, fx, nn
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.onnx._internal.exporter import _decomp, _registration

aten = torch.ops.aten

MODULE_KEY = "memplan.module"
FIRST_DROPOUT_SEED = 1000
MAX_CONSTANT_BYTES = 1024  # larger constants (masks, zeros) are computed in the graph


@dataclass(frozen=True)
class AdamW:
    """Hyperparameters of the update written into the graph (as ``torch.optim.AdamW``)."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01


@dataclass(frozen=True)
class TrainStep:
    """What to capture.

    ``batch`` maps graph input names to example tensors, in the order of ``model.forward``.
    With ``dynamic_batch`` the first dimension of every batch tensor is symbolic under that name.
    """

    model: nn.Module
    batch: dict[str, Tensor]
    optimizer: AdamW | None = None
    dynamic_batch: str | None = None

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}

    @property
    def buffers(self) -> dict[str, Tensor]:
        return dict(self.model.named_buffers())

    @property
    def optimizer_state(self) -> dict[str, Tensor]:
        if self.optimizer is None:
            return {}
        # As in the middle of a training: after zero moments, the first update is no more than
        # the signs of the gradients, even of those which are rounding noise.
        random = torch.Generator().manual_seed(0)
        m, v = {}, {}
        for name, p in self.parameters.items():
            m[f"{name}.m"] = 1e-3 * torch.randn(p.shape, generator=random)
            v[f"{name}.v"] = 1e-6 * (1 + torch.rand(p.shape, generator=random))
        return {**m, **v, "step": torch.tensor(100.0)}

    def inputs(self) -> dict[str, Tensor]:
        """Graph inputs in order, with values to run the graph on."""
        return {**self.parameters, **self.buffers, **self.batch, **self.optimizer_state}


def capture(step: TrainStep, opset: int = 20) -> onnx.ModelProto:
    """The whole training step as one ONNX model in the default operator domain."""
    scopes = _ModuleScopes(step.model)
    graph_module, outputs = _trace(step, scopes)
    model = _export(step, graph_module, outputs, opset)
    _tidy(model)
    if step.dynamic_batch:
        _rename_dimension(model, step.dynamic_batch)
    onnx.checker.check_model(model, full_check=True)
    assert not _without_shape(model), f"unknown shapes: {_without_shape(model)}"
    return model


# ------------------------------------------------------------------ the step as a pure function


def _adamw_update(
    config: AdamW, state: dict[str, Tensor], grads: dict[str, Tensor]
) -> dict[str, Tensor]:
    """New parameters, moments and step count, under their output names."""
    (beta1, beta2), lr = config.betas, config.lr
    count = state["step"] + 1
    step_size = lr / (1 - torch.pow(beta1, count))
    correction = torch.sqrt(1 - torch.pow(beta2, count))
    new, moments1, moments2 = {}, {}, {}
    for name, grad in grads.items():
        m = beta1 * state[f"{name}.m"] + (1 - beta1) * grad
        v = beta2 * state[f"{name}.v"] + (1 - beta2) * (grad * grad)
        decayed = state[name] * (1 - lr * config.weight_decay)
        new[f"{name}.new"] = decayed - step_size * (m / (v.sqrt() / correction + config.eps))
        moments1[f"{name}.m.new"], moments2[f"{name}.v.new"] = m, v
    return {**new, **moments1, **moments2, "step.new": count}


def _run_step(
    step: TrainStep, scopes: _ModuleScopes, given: dict[str, Tensor]
) -> dict[str, Tensor]:
    """One training step on ``given`` (named as the graph inputs), returning the graph outputs."""
    params = {name: given[name].detach().requires_grad_() for name in step.parameters}
    buffers = {name: given[name].clone() for name in step.buffers}
    batch = tuple(given[name] for name in step.batch)
    with scopes.recording():
        loss = torch.func.functional_call(step.model, {**params, **buffers}, batch)
        scopes.watch_backward(loss)
        grads = torch.autograd.grad(loss, list(params.values()))
        named_grads = dict(zip(params, grads, strict=True))
        scopes.enter("optimizer")
        out = {"loss": loss.detach()}
        with torch.no_grad():
            if step.optimizer is None:
                out.update({f"{name}.grad": grad for name, grad in named_grads.items()})
            else:
                out.update(_adamw_update(step.optimizer, given, named_grads))
        out.update({f"{name}.new": buffer for name, buffer in buffers.items()})
    return out


# ------------------------------------------------------------------ which module a node belongs to


class _ModuleScopes:
    """Writes the module path that was running into ``node.meta`` of every recorded node.

    Forward: hooks on the modules.  Backward: each autograd node remembers the module that created
    it, and a pre-hook on it makes that module the running one again.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules() if name}
        self._stack = [""]  # no submodule: what the model itself does
        self._last: fx.Node | None = None

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        handles = []
        for module in self._names:
            handles.append(module.register_forward_pre_hook(self._push))
            handles.append(module.register_forward_hook(self._pop))
        try:
            yield
            self._label_recorded()
        finally:
            for handle in handles:
                handle.remove()

    def enter(self, scope: str) -> None:
        self._label_recorded()
        self._stack = [scope]

    def watch_backward(self, loss: Tensor) -> None:
        self._label_autograd([loss])
        for node in self._autograd_nodes([loss], lambda node: True):
            scope = node.metadata[MODULE_KEY]
            node.register_prehook(lambda _grads, scope=scope: self.enter(scope))

    def _push(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._label_recorded()
        self._label_autograd(args)
        self._stack.append(self._names[module])

    def _pop(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._label_recorded()
        self._label_autograd(output if isinstance(output, tuple) else (output,))
        self._stack.pop()

    def _label_recorded(self) -> None:
        mode = get_proxy_mode()
        assert mode is not None, "module scopes are recorded while tracing"
        newest = None
        for node in reversed(mode.tracer.graph.nodes):
            if node is self._last:
                break
            newest = newest or node
            node.meta[MODULE_KEY] = self._stack[-1]
        self._last = newest or self._last

    def _label_autograd(self, tensors: Iterable[Any]) -> None:
        for node in self._autograd_nodes(tensors, lambda node: MODULE_KEY not in node.metadata):
            node.metadata[MODULE_KEY] = self._stack[-1]

    @staticmethod
    def _autograd_nodes(tensors: Iterable[Any], wanted: Callable[[Any], bool]) -> list[Any]:
        """Autograd nodes reachable from ``tensors`` through wanted nodes."""
        found: dict[Any, None] = {}
        todo = [t.grad_fn for t in tensors if isinstance(t, Tensor) and t.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node not in found and wanted(node):
                found[node] = None
                todo += [parent for parent, _ in node.next_functions if parent is not None]
        return list(found)


# ------------------------------------------------------------------ tracing


@contextlib.contextmanager
def _traceable() -> Iterator[None]:
    """Avoid kernels that record as opaque or random CPU-only operators."""

    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return aten.native_dropout(x, p, training)[0] if training and p > 0 else x

    with (
        warnings.catch_warnings(action="ignore"),
        torch.backends.mkldnn.flags(enabled=False),
        unittest.mock.patch.object(nn.functional, "dropout", dropout),
    ):
        yield


def _trace(step: TrainStep, scopes: _ModuleScopes) -> tuple[fx.GraphModule, list[str]]:
    """The step as a functional ATen graph, and the names of its outputs."""
    examples = step.inputs()
    outputs: list[str] = []

    def flat_step(*values: Tensor) -> tuple[Tensor, ...]:
        out = _run_step(step, scopes, dict(zip(examples, values, strict=True)))
        outputs[:] = list(out)
        return tuple(out.values())

    with _traceable():
        graph_module = make_fx(
            flat_step,
            tracing_mode="symbolic" if step.dynamic_batch else "fake",
            decomposition_table=_decompositions(),
            _allow_non_fake_inputs=True,
        )(*examples.values())
    _remove_mutation(graph_module.graph)
    _remove_copies(graph_module.graph)
    graph_module.graph.eliminate_dead_code()
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module, outputs


def _remove_mutation(graph: fx.Graph) -> None:
    """Replace in-place operators by functional ones.

    Enough for batch norm statistics and LSTM gates: the tensor written to must not be a view.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        written = node.args[0]
        producer = written.args[0] if written.target.__name__ == "getitem" else written
        assert not any(r.alias_info for r in producer.target._schema.returns), "in-place on a view"
        result = node
        if node.target is aten.copy_.default:
            result = node.args[1]
        else:
            name, overload = schema.name.removeprefix("aten::").rstrip("_"), schema.overload_name
            node.target = getattr(getattr(aten, name), overload or "default")
        later = {user for user in written.users if order[user] > order[node]}
        written.replace_all_uses_with(result, delete_user_cb=later.__contains__)
        if result is not node:
            node.replace_all_uses_with(result)
            graph.erase_node(node)


_COPIES = (aten.clone.default, aten.alias.default, aten.detach.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default)


def _remove_copies(graph: fx.Graph) -> None:
    """Erase copies, and spell views as reshapes, which are right for any memory layout."""
    for node in list(graph.nodes):
        if node.target in _COPIES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in _VIEWS:
            node.target = aten.reshape.default
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
        elif node.target is aten.as_strided.default:
            source, value = node.args[0].meta["val"], node.meta["val"]
            assert source.numel() == value.numel(), "as_strided of a part"
            assert value.is_contiguous(), "as_strided as a transposition"
            node.target, node.args = aten.reshape.default, (node.args[0], list(value.shape))


# ------------------------------------------------------------------ decompositions


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own decompositions of what ONNX lacks, and ours of the rest."""
    registry = _registration.ONNXRegistry.from_torchlib()
    table: dict[Any, Any] = _decomp.create_onnx_friendly_decomposition_table(
        set(_decomp.get_onnx_implemented_overloads(registry))
    )
    # In-place operators are left for _remove_mutation, which keeps them whole.
    table = {op: rule for op, rule in table.items() if not op._schema.is_mutable}
    # These have a translation, but not one that ONNX Runtime can train with.
    for name in (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "native_group_norm",
        "nll_loss_forward",
    ):
        packet = getattr(aten, name)
        for op in (getattr(packet, overload) for overload in packet.overloads()):
            if op in decomposition_table:
                table[op] = decomposition_table[op]
    table[aten.squeeze.dims] = _squeeze
    table[aten.scatter.value] = _scatter_value
    table[aten.embedding_dense_backward.default] = _embedding_backward
    table[aten.convolution_backward.default] = _convolution_backward
    table[aten.max_pool2d_with_indices_backward.default] = _max_pool2d_backward
    return table


def _squeeze(x: Tensor, dims: Sequence[int]) -> Tensor:
    """One reshape instead of one squeeze per dimension."""
    return x.reshape([size for d, size in enumerate(x.shape) if d not in dims])


def _scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Tensor:
    """With the values spelled out, as the exporter does, but so that their shape is known."""
    return x.scatter(dim, index, torch.full_like(index, value, dtype=x.dtype))


def _embedding_backward(
    grad: Tensor, indices: Tensor, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """One-hot product: ONNX Runtime's ScatterND races where a token occurs twice."""
    assert padding_idx < 0, "padding"
    assert not scale_grad_by_freq, "gradient scaling"
    one_hot = indices.reshape([-1, 1]) == torch.arange(rows)
    return one_hot.to(grad.dtype).t() @ grad.reshape([-1, grad.shape[-1]])


def _convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of an ungrouped convolution, in terms of convolutions."""
    assert groups == 1, "grouped convolution"
    dims = range(weight.dim() - 2)
    kernel = weight.shape[2:]
    grad_x = grad_weight = grad_bias = None
    if output_mask[0] and transposed:
        grad_x = aten.convolution(
            grad, weight, None, stride, padding, dilation, False, [0 for _ in dims], 1
        )
    elif output_mask[0]:
        reach = [
            (grad.shape[2 + d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (kernel[d] - 1) + 1
            for d in dims
        ]
        missing = [x.shape[2 + d] - reach[d] for d in dims]
        grad_x = aten.convolution(grad, weight, None, stride, padding, dilation, True, missing, 1)
    if output_mask[1]:
        image, window = (grad, x) if transposed else (x, grad)
        grad_weight = _convolution_weight_grad(image, window, kernel, stride, padding, dilation)
    if output_mask[2]:
        grad_bias = grad.sum([0, *(2 + d for d in dims)])
    return grad_x, grad_weight, grad_bias


def _convolution_weight_grad(
    image: Tensor,
    window: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """One convolution of the image with the output gradient, channels in the place of the batch."""
    images, windows = image.transpose(0, 1), window.transpose(0, 1)
    unpadded = [0 for _ in kernel]
    grad = aten.convolution(
        images, windows, None, dilation, padding, stride, False, unpadded, 1
    ).transpose(0, 1)
    for d, size in enumerate(kernel):  # longer where the stride does not divide the image
        grad = grad.narrow(2 + d, 0, size)
    return grad


def _max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Scatter the gradient to where the maxima were."""
    lead = list(x.shape[:-2])
    flat = grad.new_zeros([*lead, x.shape[-2] * x.shape[-1]])
    rows = [*lead, -1]
    return flat.scatter_add(-1, indices.reshape(rows), grad.reshape(rows)).reshape(x.shape)


# ------------------------------------------------------------------ export and tidying


def _export(
    step: TrainStep, graph_module: fx.GraphModule, outputs: list[str], opset: int
) -> onnx.ModelProto:
    examples = step.inputs()
    dynamic_shapes = None
    if step.dynamic_batch:
        batch = torch.export.Dim(step.dynamic_batch, min=2)
        dynamic_shapes = (tuple({0: batch} if name in step.batch else None for name in examples),)
    exported = torch.export.export(
        _Wrapper(graph_module), tuple(examples.values()), dynamic_shapes=dynamic_shapes
    )
    scopes = _exported_scopes(graph_module.graph, exported.graph)
    # The graph is decomposed already; decomposing again would lose the order and the names.
    decompose = "torch.onnx._internal.exporter._fx_passes.decompose_with_registry"
    with unittest.mock.patch(decompose, lambda program, *args, **kwargs: program):
        program = torch.onnx.export(
            exported,
            dynamo=True,
            input_names=list(examples),
            output_names=outputs,
            opset_version=opset,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    onnxscript.optimizer.optimize_ir(program.model, output_size_limit=MAX_CONSTANT_BYTES)
    model = program.model_proto
    _write_scopes(model, scopes)
    return model


class _Wrapper(nn.Module):
    """Gives the traced graph the variadic signature that ``dynamic_shapes`` is written against."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        super().__init__()
        self.run = graph_module

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        return self.run(*values)


def _exported_scopes(traced: fx.Graph, exported: fx.Graph) -> dict[str, str]:
    """Module paths under the node names of the exported graph, which has the same operators."""

    def operators(graph: fx.Graph) -> list[fx.Node]:
        return [
            node
            for node in graph.nodes
            if isinstance(node.target, torch._ops.OpOverload)
            and not isinstance(node.meta["val"], torch.SymInt)
        ]

    pairs = list(zip(operators(traced), operators(exported), strict=True))
    assert all(old.target is new.target for old, new in pairs), "export changed the graph"
    return {new.name: old.meta[MODULE_KEY] for old, new in pairs}


def _write_scopes(model: onnx.ModelProto, scopes: dict[str, str]) -> None:
    """Replace the exporter's node metadata by the module that the node belongs to.

    Nodes which the exporter inserted (casts, sizes) belong where the next node does.
    """
    scope = ""
    for node in reversed(model.graph.node):
        exporter = {entry.key: entry.value for entry in node.metadata_props}
        path = ast.literal_eval(exporter.get("pkg.torch.onnx.name_scopes", "['']"))
        scope = scopes.get(path[-1], scope)
        del node.metadata_props[:]
        if scope:
            node.metadata_props.add(key=MODULE_KEY, value=scope)


def _tidy(model: onnx.ModelProto) -> None:
    """Drop remaining exporter metadata and make every Dropout repeatable."""
    model.producer_name, model.producer_version = "memplan sample_models", ""
    model.graph.name, model.graph.doc_string = "training_step", ""
    for entry in [model, model.graph, *model.graph.initializer]:
        del entry.metadata_props[:]
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        del value.metadata_props[:]
    dropouts = [node for node in model.graph.node if node.op_type == "Dropout"]
    for index, node in enumerate(dropouts):
        node.attribute.append(onnx.helper.make_attribute("seed", FIRST_DROPOUT_SEED + index))


def _rename_dimension(model: onnx.ModelProto, name: str) -> None:
    """Give the one free symbol of the export the name that was asked for."""
    graph = model.graph
    dims = [
        dim
        for value in [*graph.input, *graph.output, *graph.value_info]
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    ]
    symbols = {dim.dim_param for dim in dims if dim.dim_param.isidentifier()}
    (symbol,) = symbols
    for dim in dims:
        dim.dim_param = dim.dim_param.replace(symbol, name)


def _without_shape(model: onnx.ModelProto) -> list[str]:
    """Node outputs of which the file does not tell every dimension."""
    known = {
        value.name
        for value in [*model.graph.output, *model.graph.value_info]
        if value.type.tensor_type.HasField("shape")
        and all(d.HasField("dim_value") or d.dim_param for d in value.type.tensor_type.shape.dim)
    }
    return [name for node in model.graph.node for name in node.output if name and name not in known]
