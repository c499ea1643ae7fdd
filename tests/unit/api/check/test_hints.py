"""Commands to copy: exactly what the user has to type."""

import shlex
from pathlib import Path

import pytest

from helpers.locks import MIB
from memplan.api.check.hints import accept_command, exact_size, fit_command, key_of
from memplan.api.check.peak import Binding
from memplan.errors import UsageError
from memplan.units import parse_size, shell_word


class TestCommands:
    def test_sizes_read_back(self) -> None:
        assert exact_size(775 * MIB) == "775MiB"
        for nbytes in (1, 1023, 1024, 1536, 775 * MIB, 2 * 1024**4, 1024**5, 812_646_401):
            assert parse_size(exact_size(nbytes)).nbytes == nbytes

    def test_words_are_quoted(self) -> None:
        command = accept_command(Path("ci/memplan.lock"), Path("-my model.onnx"), None, ("N",))
        assert shlex.split(command) == [
            "memplan",
            "check",
            "--update",
            "--lock",
            "ci/memplan.lock",
            "./-my model.onnx",
            "--dim",
            "N=...",
        ]

    def test_a_name_of_two_lines_stays_that_name(self) -> None:
        """On one line, in a form that a shell reads; not escaped, as that file does not exist."""
        file = Path("a\n::error::b.onnx")
        accept = accept_command(Path("memplan.lock"), file)
        fit = fit_command(file, MIB, Binding({}, "tuned", "cpu"))
        assert accept == f"memplan check --update {shell_word(str(file))}"
        assert fit == f"memplan rewrite {shell_word(str(file))} --budget 1MiB"

    def test_binding_is_named_where_it_is_not_the_default(self) -> None:
        binding = Binding({"N": 8}, "default", "cuda")
        assert fit_command(Path("m.onnx"), MIB, binding) == (
            "memplan rewrite m.onnx --budget 1MiB --dim N=8 --session default --provider cuda"
        )
        locked = Binding({"N": 8}, "default", "cpu")
        wanted = Binding({"N": 8}, "tuned", "cpu")
        command = accept_command(Path("memplan.lock"), Path("m.onnx"), wanted, locked=locked)
        assert command == "memplan check --update m.onnx --session tuned"

    def test_paths_are_relative_to_the_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for folder in ("models", "ci"):
            (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / "models")
        lock = Path("../memplan.lock")
        assert key_of(Path("m.onnx"), lock) == "models/m.onnx"
        assert key_of(tmp_path / "models" / "m.onnx", lock) == "models/m.onnx"
        assert key_of(Path("./x/../m.onnx"), Path("../ci/l")) == "../models/m.onnx"

    def test_paths_through_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "real" / "deep").mkdir(parents=True)
        (tmp_path / "real" / "store.bin").touch()
        (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
        (tmp_path / "real" / "m.onnx").symlink_to(tmp_path / "real" / "store.bin")
        monkeypatch.chdir(tmp_path)
        # Below the lock's folder a link keeps its name; beside it, '..' must lead to the file.
        assert key_of(Path("link/m.onnx"), Path("memplan.lock")) == "link/m.onnx"
        assert key_of(Path("real/m.onnx"), Path("link/memplan.lock")) == "../m.onnx"
        assert (Path("link") / "../m.onnx").exists()

    def test_a_name_that_is_not_unicode(self) -> None:
        with pytest.raises(UsageError, match="not Unicode"):
            key_of(Path("bad\udcff.onnx"), Path("memplan.lock"))
