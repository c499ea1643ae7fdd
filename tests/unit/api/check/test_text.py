"""The report of a check."""

from dataclasses import replace

from helpers.locks import LOCK, MIB, an_entry, held, today
from memplan.api.check.checking import CheckResult
from memplan.api.check.peak import Peak
from memplan.api.check.text import check_lines


class TestText:
    def text(self, locked: Peak, now: Peak, cap: int | None = None) -> str:
        found = held(locked, now, cap_bytes=cap)
        return "\n".join(check_lines(CheckResult(LOCK, (found,))))

    def test_a_small_growth_is_told_in_bytes(self) -> None:
        locked = an_entry()
        text = self.text(locked, today(locked, peak_bytes=100 * MIB + 4))
        assert "peak +4 B (less than 0.1%)   104,857,600 B -> 104,857,604 B" in text
        assert "the same as in the lock" in text

    def test_a_limit_below_the_floor_offers_chunks_alone(self) -> None:
        locked = an_entry()
        now = replace(today(locked, peak_bytes=200 * MIB), floor_bytes=150 * MIB)
        text = self.text(locked, now)
        assert "below 150 MiB, the floor, only chunks may bring it: memplan rewrite" in text
        assert "--budget 100MiB --chunk auto" in text
        assert "memplan rewrite models/mlp.onnx --budget 100MiB" in self.text(
            locked, replace(now, floor_bytes=99 * MIB)
        )

    def test_workspace_above_the_cap_is_noted(self) -> None:
        locked = an_entry()
        assert "with kernel workspace" in self.text(locked, today(locked), 100 * MIB)
        assert "with kernel workspace" not in self.text(locked, today(locked), 101 * MIB)
