"""A backend of ``torch.compile`` that keeps the peak of a step within a budget.

The socket is the partitioner: the function that AOTAutograd hands the joint graph of forward and
backward, and which gives the two graphs that are compiled. PyTorch's socket for a budget,
``activation_memory_budget_solver``, is a knapsack: it is asked which of some candidates to save,
sees neither order nor peak, and is not asked at all at budgets 0 and 1.
"""

from __future__ import annotations

import hashlib
import operator
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from torch import fx

from memplan.errors import ModelError
from memplan.pytorch.installed_torch import named_in_failures
from memplan.pytorch.solver_options import SolverOptions
from memplan.pytorch.solver_plan import plan_joint
from memplan.pytorch.solver_report import TorchReport
from memplan.pytorch.torch_internals import internal

_PartitionerFn: Any = internal("torch._inductor.custom_graph_pass.CustomPartitionerFn")


class TorchSolver(_PartitionerFn):
    """A backend for ``torch.compile``, and a partitioner for everything else that takes one.

    ``reports`` holds a :class:`~memplan.pytorch.solver_report.TorchReport` for every graph that was
    compiled, the latest last.
    """

    def __init__(self, options: SolverOptions) -> None:
        """For one step: the budget is that of one graph."""
        self.options = options
        self.reports: list[TorchReport] = []
        self._frame: int | None = None

    @property
    def report(self) -> TorchReport:
        """The report of the latest graph.

        Raises:
            ModelError: none was compiled yet.
        """
        if not self.reports:
            raise ModelError(
                "no step has been compiled yet",
                "call the compiled model once, with gradients enabled",
            )
        return self.reports[-1]

    def uuid(self) -> str:
        """What PyTorch's caches know the partitioner by: version and options."""
        text = f"{version('memplan')} {sorted(asdict(self.options).items())}"
        return f"memplan-{hashlib.sha256(text.encode()).hexdigest()}"

    @named_in_failures("torch_solver")
    def backend(self, module: fx.GraphModule, inputs: list[Any]) -> Any:
        """The backend for ``torch.compile(model, backend=solver.backend)``."""
        # A cached pair of graphs would come without a plan, and so without a report.
        with internal("torch._functorch.config").patch(enable_autograd_cache=False):
            if self.options.backend == "inductor":
                compile_fx = internal("torch._inductor.compile_fx.compile_fx")
                return compile_fx(module, inputs, config_patches={"custom_partitioner_fn": self})
            boxed_nop = internal("torch._dynamo.backends.debugging.boxed_nop")
            compiler = internal("torch._dynamo.backends.common.aot_autograd")(
                fw_compiler=boxed_nop,
                bw_compiler=boxed_nop,
                partition_fn=self,
                keep_inference_input_mutations=True,
            )
            return compiler(module, inputs)

    @named_in_failures("torch_solver")
    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph of a joint graph.

        Raises:
            InfeasibleError: no plan keeps the budget.
            ModelError: the graph holds what plans cannot hold.
        """
        _normalize(gm)
        if not gm.graph.find_nodes(op="placeholder") or not _has_backward(gm.graph):
            default_partition = internal("torch._functorch.partitioners.default_partition")
            return default_partition(gm, joint_inputs, num_fwd_outputs=num_fwd_outputs)
        self._one_graph()
        found, report = plan_joint(gm, num_fwd_outputs, self.options)
        self.reports.append(report)
        return found.forward, found.backward

    def _one_graph(self) -> None:
        """Refuse a second graph of the same step: their peaks would add up."""
        compiled = internal("torch._guards.CompileContext").current_compile_id()
        frame = getattr(compiled, "frame_id", None)
        if self._frame is not None and frame is not None and frame != self._frame:
            raise ModelError(
                "the step is compiled in several graphs, and a budget is that of one",
                "remove the graph breaks (torch.compile(..., fullgraph=True) names them); a second "
                "model takes a solver of its own",
            )
        self._frame = frame if frame is not None else self._frame


def _normalize(gm: fx.GraphModule) -> None:
    """Tidy a joint graph as PyTorch's partitioner does, and take every result of a call once."""
    gm.graph.eliminate_dead_code()
    if internal("torch._functorch.config").cse:
        gm.graph = internal("torch._functorch.compile_utils.fx_graph_cse")(gm.graph)
    taken: dict[tuple[fx.Node, Any], fx.Node] = {}
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is operator.getitem:
            key = (node.args[0], node.args[1]) if isinstance(node.args[1], int) else (node, 0)
            first = taken.setdefault(key, node)
            if first is not node:
                node.replace_all_uses_with(first)
                gm.graph.erase_node(node)
    gm.recompile()


def _has_backward(graph: fx.Graph) -> bool:
    return any("tangents" in str(each.target) for each in graph.find_nodes(op="placeholder"))
