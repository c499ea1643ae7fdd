"""Names in the HTML report: short, and each kept once where it repeats."""

from __future__ import annotations

_NAME_CHARACTERS = 80


class NameTable:
    """Distinct texts in order of first use."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._index: dict[str, int] = {}

    def index(self, name: str) -> int:
        """Position of ``name``, added when it is new."""
        if name not in self._index:
            self._index[name] = len(self.names)
            self.names.append(name)
        return self._index[name]


def shorten(name: str) -> str:
    """``name``, without its middle where it is long."""
    if len(name) <= _NAME_CHARACTERS:
        return name
    half = (_NAME_CHARACTERS - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
