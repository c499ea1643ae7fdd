"""The lock: what is written reads back, what is broken is named."""

import posixpath
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers.locks import MIB, an_entry
from memplan.api.check.lock import lock_text, path_problem, read_lock, write_lock
from memplan.api.check.peak import TOP_FAMILIES, Peak, TopTensors, tolerance_bytes
from memplan.api.check.toml import toml_value
from memplan.errors import LockError, UsageError

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


SIZES = st.integers(min_value=0, max_value=2**62)


PATHS = (
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
    .map(posixpath.normpath)
    .filter(lambda path: not path_problem(path))
)


@st.composite
def entries(draw: st.DrawFn) -> Peak:
    top = st.builds(TopTensors, TEXTS, TEXTS, SIZES, SIZES)
    return Peak(
        path=draw(PATHS),
        fingerprint=draw(TEXTS),
        accounting=draw(SIZES),
        session=draw(st.sampled_from(["tuned", "default"])),
        provider=draw(st.sampled_from(["cpu", "cuda"])),
        dims=draw(st.dictionaries(TEXTS, st.integers(1, 2**40), max_size=3)),
        peak_bytes=draw(SIZES),
        peak_with_workspace_bytes=draw(st.none() | SIZES),
        peak_node=draw(TEXTS),
        classes=draw(st.dictionaries(TEXTS, SIZES, max_size=3)),
        top=tuple(draw(st.lists(top, max_size=3))),
        tolerance=draw(st.sampled_from([None, 0, 17, "1%", "2MiB", "0", "1.5 %"])),
        state=draw(st.sampled_from([None, "in-place", "apart"])),
        runtime=draw(st.none() | TEXTS),
        as_loaded=draw(st.none() | st.booleans()),
        structure=draw(st.none() | TEXTS),
        operators=draw(st.none() | st.dictionaries(TEXTS, SIZES, max_size=3)),
        inputs=draw(st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3)),
    )


class TestRoundTrip:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @example([an_entry(path="od\"d\\ \n\u2028\x7f]#'=.onnx"), an_entry(path="../up/π 模型.onnx")])
    @given(st.lists(entries(), max_size=4, unique_by=lambda entry: entry.path))
    def test_what_is_written_reads_back(self, tmp_path: Path, written: list[Peak]) -> None:
        file = tmp_path / "memplan.lock"
        write_lock(file, written)
        lock = read_lock(file)
        assert dict(lock.entries) == {entry.path: entry for entry in written}
        # The same bytes from any order, and again from what was read.
        assert lock.text == lock_text(reversed(written)) == lock_text(lock.entries.values())
        # Every entry's line is the one that opens its table.
        lines = lock.text.split("\n")
        for entry in written:
            opened = tomllib.loads(lines[lock.entries[entry.path].line - 1])
            assert opened == {"models": {entry.path: {}}}

    def test_tables_are_sorted_and_dims_too(self) -> None:
        text = lock_text([an_entry(path="b", dims={"z": 1, "a": 2}), an_entry(path="a")])
        assert text.index('[models."a"]') < text.index('[models."b"]')
        assert "dims = { a = 2, z = 1 }" in text

    def test_the_bytes_are_those_of_every_memplan(self) -> None:
        entry = an_entry(state="apart", runtime="onnxruntime 1.31.1", as_loaded=False)
        entry = replace(
            entry, structure="0a", operators={"com.x:Y": 2}, types={}, inputs={"x": "b"}
        )
        many = tuple(TopTensors(f"t{k}", "stash", 1, 99 - k) for k in range(TOP_FAMILIES + 5))
        (table,) = lock_text([replace(entry, top=many[:1], tolerance=7)]).split("\n\n")[1:]
        assert (
            table
            == """\
[models."models/mlp.onnx"]
fingerprint = "ffffffffffffffffffffffffffffffff"
accounting = 6
session = "tuned"
provider = "cpu"
state = "apart"
runtime = "onnxruntime 1.31.1"
as_loaded = false
dims = { N = 32 }
peak_bytes = 104857600
peak_with_workspace_bytes = 105906176
peak_node = "mul_5"
classes = { weights = 20971520, stash = 83886080 }
top = [
    { name = "t0", class = "stash", count = 1, nbytes = 99 },
]
structure = "0a"
operators = { "com.x:Y" = 2 }
types = {}
inputs = { x = "b" }
tolerance = 7
"""
        )
        assert lock_text([replace(entry, top=many)]).count("{ name") == TOP_FAMILIES
        assert "\ntop = []\n" in lock_text([replace(entry, top=())])

    def test_invisible_characters_are_escaped(self) -> None:
        assert toml_value("a\x1b\u202eb\n") == '"a\\u001B\\u202Eb\\n"'
        assert toml_value("é π 模") == '"é π 模"'

    def test_windows_line_ends_and_byte_order_mark(self, tmp_path: Path) -> None:
        file = tmp_path / "memplan.lock"
        text = lock_text([an_entry()])
        file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
        lock = read_lock(file)
        assert lock.entries["models/mlp.onnx"] == an_entry()
        assert lock.entries["models/mlp.onnx"].line == 5

    def test_only_line_feeds_count_as_lines(self, tmp_path: Path) -> None:
        file = tmp_path / "memplan.lock"
        file.write_text("# edited \u2028 by \x85 hand\n" + lock_text([an_entry()]))
        assert read_lock(file).entries["models/mlp.onnx"].line == 6


GOOD = lock_text([an_entry(path="a.onnx"), an_entry(path="b.onnx", tolerance="1%")])


WORKSPACE = "peak_with_workspace_bytes"
B_START = GOOD[: GOOD.index('[models."b.onnx"]')].count("\n") + 1


def in_b(old: str, new: str) -> Callable[[str], str]:
    """Replace ``old`` in the second model's table only."""

    def edit(text: str) -> str:
        start = text.index('[models."b.onnx"]')
        assert old in text[start:]
        return text[:start] + text[start:].replace(old, new, 1)

    return edit


def without(field: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        start = text.index('[models."b.onnx"]')
        lines = text[start:].split("\n")
        kept = [line for line in lines if not line.startswith(f"{field} =")]
        assert len(kept) == len(lines) - 1
        return text[:start] + "\n".join(kept)

    return edit


def line_in_b(field: str) -> int:
    lines = GOOD.split("\n")
    return next(n for n in range(B_START, len(lines)) if lines[n - 1].startswith(f"{field} ="))


def set_in_b(field: str, value: str) -> Callable[[str], str]:
    """Let a field of the second model have another value, as it stands in the file."""
    line = GOOD.split("\n")[line_in_b(field) - 1]
    return in_b(line, f"{field} = {value}")


REQUIRED = "fingerprint accounting session provider dims peak_bytes peak_node classes"
WHOLE = "not a whole number"
Edit = Callable[[str], str]
# What is broken, how, the line that is named, and the problem.
BROKEN: list[tuple[str, Edit, int, str]] = [
    ("empty", lambda text: "", 0, "no version number"),
    ("version no number", lambda t: t.replace("version = 1", "version = true"), 0, "no version"),
    ("newer version", lambda t: t.replace("version = 1", "version = 2"), 0, "lock version 2"),
    ("unknown field", lambda t: t.replace("version = 1", "version = 1\nmodel = 1"), 0, "'model'"),
    ("models no table", lambda t: "version = 1\nmodels = 3\n", 0, "'models' is not a table"),
    ("model no table", lambda t: 'version = 1\n[models]\n"b.onnx" = 3\n', 0, "is not a table"),
    ("cut off", lambda t: t[: t.rindex("top = [") + 20], line_in_b("top") + 1, "not valid TOML"),
    ("twice the same model", lambda t: t.replace("b.onnx", "a.onnx"), B_START, "not valid TOML"),
    ("conflict", in_b("fingerprint", "<<<<<<< HEAD\nfingerprint"), B_START + 1, "merge conflict"),
    ("deep nesting", lambda t: t + "x = " + "[" * 20_000, 0, "nested too deeply"),
    ("a key of 30,000 parts", lambda t: f"{t}[{'.'.join('a' * 30_000)}]\n", 0, "too deeply"),
    ("a long quoted key", lambda t: t + " . ".join(['"a"'] * 30_000) + " = 1\n", 0, "too deeply"),
    ("absolute path", in_b('"b.onnx"', '"/b.onnx"'), B_START, "is absolute"),
    ("roundabout path", in_b('"b.onnx"', '"./b.onnx"'), B_START, "shortest form 'b.onnx'"),
    ("no path", in_b('"b.onnx"', '""'), B_START, "is not a path"),
    ("NUL in path", in_b('"b.onnx"', '"b\\u0000"'), B_START, "is not a path"),
    *((f"no {f}", without(f), B_START, f"'{f}' of model 'b.onnx' is") for f in REQUIRED.split()),
    ("misspelt", in_b("tolerance", "tolerence"), B_START, "not a field"),
    ("text as bytes", set_in_b("peak_bytes", '"100MiB"'), B_START, WHOLE),
    ("float as bytes", set_in_b("peak_bytes", "1e6"), B_START, WHOLE),
    ("negative bytes", set_in_b("peak_bytes", "-1"), B_START, WHOLE),
    ("bytes of 400 digits", set_in_b("peak_bytes", "9" * 400), B_START, WHOLE),
    ("boolean", set_in_b(WORKSPACE, "true"), B_START, WHOLE),
    ("number as text", set_in_b("fingerprint", "7"), B_START, "not a string"),
    ("unknown session", set_in_b("session", '"fast"'), B_START, "is 'fast', not one of"),
    ("unknown provider", set_in_b("provider", '"tpu"'), B_START, "is 'tpu', not one of"),
    (
        "unknown state",
        set_in_b("provider", '"cpu"\nstate = "aside"'),
        B_START,
        "is 'aside', not one of in-place, apart",
    ),
    ("dim of 0", set_in_b("dims", "{ N = 0 }"), B_START, "has 'N'"),
    ("dims no table", set_in_b("dims", "[32]"), B_START, "not a table"),
    ("dim beyond 64 bits", set_in_b("dims", f"{{ N = {2**63} }}"), B_START, "from 1 to 2^63 - 1"),
    ("digits without end", set_in_b("dims", f"{{ N = {'9' * 5000} }}"), 0, "not valid TOML"),
    ("class no number", in_b("stash = 8", "stash = 0.8"), B_START, "has 'stash'"),
    (
        "version of 400 digits",
        lambda t: t.replace("version = 1", f"version = {'9' * 400}"),
        0,
        "lock version 999999999…, where",
    ),
    ("no top", lambda t: t[: t.rindex("top = [")], B_START, "'top' of model 'b.onnx' is missing"),
    ("top no array", lambda t: t[: t.rindex("top = [")] + "top = 3", B_START, "not an array"),
    ("top without count", in_b("count = 8, ", ""), B_START, "element other than"),
    ("top with text count", in_b("count = 8", 'count = "8"'), B_START, WHOLE),
    ("top with number name", in_b('"act*"', "7"), B_START, "not a string"),
    *(
        (f"tolerance {value}", in_b('"1%"', value), B_START, "not a size or a perc")
        for value in ("1.5", "-1", "true", '"much"', '"4G"', '"-1%"', '""', "[1]")
    ),
]


class TestBrokenLock:
    @pytest.mark.parametrize(
        ("edit", "line", "problem"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN]
    )
    def test_names_line_and_problem(
        self, tmp_path: Path, edit: Edit, line: int, problem: str
    ) -> None:
        file = tmp_path / "memplan.lock"
        file.write_text(edit(GOOD))
        with pytest.raises(LockError) as caught:
            read_lock(file)
        error = caught.value
        where = f"{file}:{line}: " if line else f"{file}: "
        assert error.message.startswith(where), error.message
        assert problem in error.message
        assert "\n" not in error.message
        assert error.hint
        assert error.exit_code == 3

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(st.integers(0, len(GOOD)), st.integers(0, 40), st.text('"\\[]{}=,.#\n1aé\0', max_size=4))
    def test_any_damage_is_read_or_refused_in_one_line(
        self, tmp_path: Path, place: int, length: int, inserted: str
    ) -> None:
        file = tmp_path / "memplan.lock"
        file.write_bytes((GOOD[:place] + inserted + GOOD[place + length :]).encode())
        try:
            read_lock(file)
        except LockError as error:
            assert error.message.isprintable()  # noqa: PT017 - most damage is legal TOML
            assert error.hint  # noqa: PT017

    def test_workspace_peak_may_be_absent(self, tmp_path: Path) -> None:
        file = tmp_path / "memplan.lock"
        file.write_text(without(WORKSPACE)(GOOD))
        assert read_lock(file).entries["b.onnx"].peak_with_workspace_bytes is None

    def test_missing_folder_and_bytes(self, tmp_path: Path) -> None:
        with pytest.raises(LockError, match="does not exist"):
            read_lock(tmp_path / "memplan.lock")
        with pytest.raises(LockError, match="cannot be read"):
            read_lock(tmp_path)
        (tmp_path / "memplan.lock").write_bytes(b"version = 1\n# \xff\n")
        with pytest.raises(LockError, match=r"memplan.lock:2: .*not UTF-8"):
            read_lock(tmp_path / "memplan.lock")


@pytest.mark.parametrize(
    ("tolerance", "nbytes"),
    [
        (None, 0),
        (0, 0),
        (123, 123),
        ("0", 0),
        ("0%", 0),
        ("0.0 MiB", 0),
        ("1%", 10_000),
        ("0.15%", 1_500),
        ("2MiB", 2 * MIB),
        ("3kB", 3_000),
        ("77", 77),
        ("0.00015%", 1),
    ],
)
def test_tolerance_forms(tolerance: str | int | None, nbytes: int) -> None:
    assert tolerance_bytes(tolerance, 1_000_000) == nbytes


@pytest.mark.parametrize("tolerance", ["4G", "-1", "1 %%", "lots", "0x"])
def test_tolerance_nonsense(tolerance: str) -> None:
    with pytest.raises(UsageError):
        tolerance_bytes(tolerance, 1)
