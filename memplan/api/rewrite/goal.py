"""What ``rewrite`` is asked: its options, and what they come to for one file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from memplan.api.analysis import Analysis
from memplan.deadline import Deadline
from memplan.errors import UsageError
from memplan.ops.cost import DEVICES, Device, device_for
from memplan.options import RewriteOptions
from memplan.passes.chunk.asked import Asked, Room
from memplan.passes.graph_pass import Pass
from memplan.passes.manager import passes_for
from memplan.passes.order import Order
from memplan.passes.prune import Prune
from memplan.planning.costs import NodeCosts, check_costs, measured_costs, read_costs
from memplan.planning.forms.extend_graph import NO_KINDS
from memplan.planning.forms.on_host import ON_HOST
from memplan.planning.forms.packed_masks import PACKED
from memplan.planning.selections import NO_SELECTORS, Selectors
from memplan.proto.weights import NO_WEIGHTS, Placement
from memplan.simulate.opened import OpenModel
from memplan.simulate.session import SessionKind
from memplan.solver.strategies.builtin import Search, parse_strategy
from memplan.solver.strategy import Progress, Strategy


@dataclass(frozen=True, slots=True)
class Source:
    """The file as it was read. ``original``: what it takes in a session of the kind that is
    planned for; ``analyzed``: the model that this was found for, if it is not ``model`` with its
    nodes in another order; ``notes``: what was done to it; ``placement``: what becomes of external
    weights."""

    model: OpenModel
    original: Analysis
    notes: tuple[str, ...] = ()
    placement: Placement = NO_WEIGHTS
    analyzed: OpenModel | None = None


# Of the time limit, until passes may begin that only save memory.
_PASSES = 0.5
# For every node, what is to be written takes about so many times what opening took: applying,
# checking its bytes, proving and writing; for plain sessions also choosing fences and pins, and
# loading the new file. Making chunks and encoding them take so many.
_CLOSING = {"tuned": 2.5, "default": 3.0}
_MAKING = 1.0
# The pass that orders nodes may take this share of the time left.
_ORDER_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Goal:
    """What every candidate is planned for, and how.

    ``budget_bytes`` bounds resident and dynamic bytes with workspace; 0: the least is asked for.
    ``loops`` is the policy for loops (:func:`memplan.api.rewrite.loop_storage.loops_policy`),
    ``chunk`` that for chunks, None: none. ``forms``: kinds of other forms in which tensors may be
    kept (:mod:`memplan.planning.forms`). ``selectors``: what is kept, and what is recomputed
    anyway.

    ``deadline`` is that of the whole, and never passes where rounds are counted;
    ``opening_seconds``: what opening the file took for every node. As this machine is as busy, the
    steps that look at no clock will take their multiple.

    ``prune_alone``: no other pass runs, as a plan was rejected before
    (:mod:`memplan.api.rewrite.finish`).

    ``searched``: the seconds of every search so far, by the clock; those that found nothing, too.

    ``copied_bytes``: by how much copies to a GPU took a plan for this goal over its budget.
    """

    options: RewriteOptions
    session: SessionKind
    strategy: Strategy
    budget_bytes: int
    costs: NodeCosts
    loops: str
    deadline: Deadline
    opening_seconds: float = 0.0
    forms: frozenset[str] = NO_KINDS
    chunk: Asked | None = None
    progress: Progress | None = None
    prune_alone: bool = False
    selectors: Selectors = NO_SELECTORS
    searched: list[float] = field(default_factory=list, compare=False)
    copied_bytes: int = 0

    @property
    def lowest(self) -> bool:
        """Whether the lowest peak is asked for, and no budget."""
        return not self.budget_bytes

    @property
    def room_bytes(self) -> int:
        """What a plan may take."""
        return self.budget_bytes - self.copied_bytes

    @property
    def passes(self) -> tuple[Pass, ...]:
        """What runs before anything is recomputed."""
        options = self.options
        if options.passes == "none":
            return ()
        order = Order(options.effort, self.deadline.share(_ORDER_SHARE))
        every = passes_for(self.session, options.wrt, order)
        return tuple(e for e in every if e.name == Prune.name) if self.prune_alone else every

    @property
    def passing(self) -> Deadline:
        """For passes that only save memory: half of the time, counted from the beginning."""
        seconds = _PASSES * self.deadline.seconds
        return Deadline(seconds - self.deadline.spent, self.deadline.clock)

    def spare(self, nodes: int) -> float:
        """Seconds until a graph of so many nodes must be ready to be written."""
        closing = _CLOSING[self.session.name] * self.opening_seconds * nodes
        return self.deadline.seconds - self.deadline.spent - closing

    @property
    def grace(self) -> float:
        """Seconds behind the deadline for which a first plan may be looked for."""
        return max(1.0, 0.1 * self.deadline.seconds)

    def room(self, seconds: float) -> Room:
        """So many seconds for chunks and all that comes of them."""
        each = (_MAKING + _CLOSING[self.session.name]) * self.opening_seconds
        return Room(Deadline(seconds, self.deadline.clock), each)


def strategy_for(options: RewriteOptions) -> Strategy:
    """The strategy, with the effort if it is given.

    Raises:
        UsageError: there is no such strategy.
    """
    strategy = parse_strategy(options.strategy)
    if isinstance(strategy, Search):
        return replace(strategy, iterations=options.effort or strategy.iterations)
    return strategy


def forms_for(options: RewriteOptions, strategy: Strategy) -> frozenset[str]:
    """The kinds of other forms in which a plan may keep tensors: none in plain sessions, which
    decide for themselves when a form is made."""
    if options.session != "tuned" or not strategy.takes_forms:
        return NO_KINDS
    return frozenset({PACKED, ON_HOST} if options.offload else {PACKED})


def node_costs(source: OpenModel, options: RewriteOptions) -> NodeCosts:
    """The estimates of the device profile, or the seconds of a costs file.

    Raises:
        UsageError: the costs file cannot be read, or was measured on another model or provider.
    """
    device = device_profile(options)
    if options.costs is None:
        return NodeCosts("estimate", device, options.provider)
    costs = read_costs(options.costs)
    check_costs(costs, source.prepared, options.provider)
    name = str(options.costs)
    if costs.fingerprint is None:  # written by hand: taken for what it says, and nothing more
        return NodeCosts(name, device, options.provider, costs.seconds)
    return measured_costs(name, source.graph, device, options.provider, costs.seconds)


def device_profile(options: RewriteOptions) -> Device:
    """The device that seconds are estimated for.

    Raises:
        UsageError: there is no profile of that name.
    """
    if options.device is not None and options.device not in DEVICES:
        raise UsageError(
            f"unknown device profile '{options.device}'", "profiles: " + ", ".join(DEVICES)
        )
    return device_for(options.provider) if options.device is None else DEVICES[options.device]


def check_offload(options: RewriteOptions) -> None:
    """Refuse what offloading cannot do.

    Raises:
        UsageError: another provider or kind of session, or a strategy that moves nothing to the
            host.
    """
    if not options.offload:
        return
    if options.provider != "cuda":
        raise UsageError(
            "--offload copies tensors from a GPU to host memory; the CPU provider has no "
            "other memory",
            "--offload requires --provider cuda",
        )
    if options.session != "tuned":
        raise UsageError(
            "offloaded tensors are copied in the file's order, which a tuned session alone keeps",
            "leave out --offload, or --session default",
        )
    strategy = parse_strategy(options.strategy)
    if not strategy.takes_forms or (isinstance(strategy, Search) and not strategy.order):
        raise UsageError(
            f"strategy '{options.strategy}' does not know what is offloaded",
            "leave out --strategy, or --offload",
        )


def budget_bytes(options: RewriteOptions, original: Analysis) -> int:
    """The budget less the reserve, in bytes.

    Raises:
        UsageError: nothing is left.
    """
    if options.budget.is_lowest:
        if options.reserve.resolve(1 << 40):
            raise UsageError("--budget min leaves nothing to take a reserve off")
        return 0
    whole = original.timeline.peak_with_workspace_bytes
    budget = options.budget.resolve(whole) - options.reserve.resolve(whole)
    if budget <= 0:
        raise UsageError(
            f"a budget of {options.budget.text} less a reserve of {options.reserve.text} "
            "leaves nothing"
        )
    return budget
