"""What ``rewrite`` says of tensors that are offloaded to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memplan.api.summary import attributes_json
from memplan.ops.cost import Device
from memplan.planning.forms.on_host import Offloaded
from memplan.simulate.timeline import Timeline
from memplan.units import counted, format_bytes


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """What a plan copies to the host and back in a step.

    ``host_bytes``: of host copies that are there at once, at the most; ``link_bytes_per_second``:
    what each direction is taken to carry, by ``link_source``.
    """

    tensors: tuple[Offloaded, ...]
    host_bytes: int
    link_bytes_per_second: float
    link_source: str

    @property
    def out_bytes(self) -> int:
        """Copied to the host."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def back_bytes(self) -> int:
        """Copied back."""
        return sum(tensor.nbytes * tensor.reads_back for tensor in self.tensors)

    @property
    def seconds(self) -> float:
        """Of all copies if nothing runs beside them."""
        return sum(tensor.seconds for tensor in self.tensors)

    @property
    def note(self) -> str:
        """In a few words."""
        out, back = format_bytes(self.out_bytes), format_bytes(self.back_bytes)
        return f"{counted(len(self.tensors), 'tensor')} offloaded ({out} out, {back} back)"

    @property
    def lines(self) -> tuple[str, ...]:
        """For the text report."""
        largest = sorted(self.tensors, key=lambda tensor: -tensor.nbytes)
        more = f" and {len(largest) - 3} more" if len(largest) > 3 else ""
        rate = self.link_bytes_per_second / 1e9
        return (
            f"offloaded (experimental): {', '.join(t.name for t in largest[:3])}{more}: "
            f"{format_bytes(self.out_bytes)} to the host, {format_bytes(self.back_bytes)} back, "
            f"{1000 * self.seconds:.2f} ms assumed at {rate:.1f} GB/s each way",
            f"host memory for it: {format_bytes(self.host_bytes)}, pinned, beside the budget",
        )

    def as_json(self) -> dict[str, object]:
        """All of it by name."""
        return {
            "experimental": True,
            "to_host_bytes": self.out_bytes,
            "to_device_bytes": self.back_bytes,
            **attributes_json(self, "host_bytes", "seconds"),
            **attributes_json(self, "link_bytes_per_second", "link_source"),
            "tensors": {
                tensor.name: {"nbytes": tensor.nbytes, "reads_back": tensor.reads_back}
                for tensor in self.tensors
            },
        }


def offload_report(
    offloaded: Sequence[Offloaded], timeline: Timeline, device: Device
) -> OffloadReport | None:
    """What is offloaded; None: nothing. ``timeline``: of the rewritten model."""
    if not offloaded:
        return None
    host = 0 if timeline.host is None else int(timeline.host.max(initial=0))
    rate, source = device.host_bytes_per_second, device.host_source
    return OffloadReport(tuple(offloaded), host, rate, source)
