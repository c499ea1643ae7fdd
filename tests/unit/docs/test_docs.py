"""What README and docs name exists: commands, options, exit codes, links, files; and figures agree
with the records that they were read from."""

import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import click
import onnx
import pytest

from helpers.models import load_benchmark
from helpers.pages import files
from memplan import errors
from memplan.autodiff.emit.gradient_registry import registered
from memplan_cli.main import COMMANDS, cli

tables = load_benchmark("tables")
ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / name / "README.md" for name in ("benchmarks", "sample_models", "tools")),
    ]
)
COMMON = {"--help", "--version"}
# Of other programs, or of the benchmarks; named where those are shown.
FOREIGN = {"benchmarks/README.md", "sample_models/README.md", "tools/README.md"}
FOREIGN_OPTIONS = {"--dist", "--op", "--out", "--resolution", "--strict"}
MADE_BY_READERS = {
    "forward.py",
    "train.py",
    "policy.py",
    "loop.py",
}
"""Files that the documents tell the reader to write, or that come from elsewhere."""
# Of Markdown; of references ("[name]: target"); of tags, as pictures for light and dark need them.
_LINK = re.compile(
    r"""\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: *(\S+)|\b(?:src|srcset|href)=["']([^"'\s]+)""",
    re.DOTALL | re.MULTILINE,
)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_PATH = re.compile(r"[\w./*-]+\.(?:py|md|toml|ya?ml|json|onnx|c|css|js)|[\w./-]+/")


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def shell_lines(page: Path) -> Iterator[str]:
    """Lines in blocks and spans of code that call memplan."""
    text = page.read_text(encoding="utf-8")
    for block in _FENCE.findall(text):
        for line in block.splitlines():
            found = re.match(r"\s*(?:\S*/|(?:accept|fit): +)?(memplan .*)", line)
            if found:
                yield found[1]
    for span in _SPAN.findall(_FENCE.sub("", text)):
        if span.startswith("memplan "):
            yield " ".join(span.split())


def options_of(command: str) -> set[str]:
    """Every spelling of every option of a command."""
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    return COMMON | {
        name
        for parameter in found.params
        if not getattr(parameter, "hidden", False)
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }


ALL_OPTIONS = {option for command in COMMANDS for option in options_of(command)}


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    result: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").replace("*", "").lower())
        anchor = kept.replace(" ", "-")
        again = sum(1 for each in result if re.fullmatch(rf"{anchor}(-\d+)?", each))
        result.add(f"{anchor}-{again}" if anchor in result else anchor)
    return result


def test_every_command_has_a_page_with_its_name_and_an_example() -> None:
    for command in COMMANDS:
        page = DOCS / "commands" / f"{command}.md"
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# memplan {command}\n")
        assert "## Example" in text
    names = {page.stem for page in (DOCS / "commands").glob("*.md")}
    assert names == set(COMMANDS)


def wrong_commands(page: Path) -> Iterator[str]:
    for line in shell_lines(page):
        words = shlex.split(
            re.sub(r"&&.*|\|.*|\s#.*", "", line).replace("[", " ").replace("]", " ")
        )
        command = words[1] if len(words) > 1 else ""
        if command in COMMON or command == "COMMAND":
            continue
        named = {word.split("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
        if command not in COMMANDS or named - options_of(command):
            yield line


def wrong_options(page: Path) -> Iterator[str]:
    """Options in the text."""
    if str(page.relative_to(ROOT)) in FOREIGN:
        return
    for span in _SPAN.findall(prose(page)):
        if not span.startswith(("pytest", ".venv", "python")):
            yield from set(_OPTION.findall(span)) - FOREIGN_OPTIONS - ALL_OPTIONS


def dead_links(page: Path) -> Iterator[str]:
    for target in ("".join(found) for found in _LINK.findall(prose(page))):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            yield target


def dead_paths(page: Path) -> Iterator[str]:
    """A path in a span of code is relative to the repository, to ``memplan/`` or to the page."""
    known = {path.name for path in ROOT.glob("*/**/*.py") if ".venv" not in path.parts}
    if DOCS in page.parents:
        known |= set(files(str(page.relative_to(DOCS))))
    bases = ROOT, ROOT / "memplan", ROOT / "tests", ROOT / "tests" / "unit", page.parent
    for span in _SPAN.findall(prose(page)):
        if not _PATH.fullmatch(span) or span.startswith(("/", "..")):
            continue
        if "/" not in span:
            if span.endswith(".py") and span not in known | MADE_BY_READERS:
                yield span
            continue
        pattern = re.sub(r"\b[A-Z]+/", "*/", span).rstrip("/")  # ROOM/ stands for any folder
        found = any(next(base.glob(pattern), None) for base in bases)
        # A path that begins in no folder of the repository is the reader's.
        first = span.split("/")[0]
        if not found and any((base / first).is_dir() for base in (ROOT, ROOT / "memplan")):
            yield span


def dead_names(page: Path) -> Iterator[str]:
    """Dotted names that cannot be imported."""
    for name in re.findall(r"\bmemplan(?:\.[a-z]\w*){2,}", page.read_text(encoding="utf-8")):
        try:
            import_module(name)
        except ModuleNotFoundError:
            module, _, attribute = name.rpartition(".")
            if not hasattr(import_module(module), attribute):
                yield name


RULES = [wrong_commands, wrong_options, dead_links, dead_paths, dead_names]


@pytest.mark.parametrize("rule", RULES)
def test_what_a_page_names_exists(rule: Callable[[Path], Iterator[str]]) -> None:
    faults = {page: found for page in PAGES if (found := sorted(rule(page)))}
    assert faults == {}


def test_exit_codes_are_those_of_the_program() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    codes |= {128 + n for n in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)}
    section = (DOCS / "reference.md").read_text(encoding="utf-8").split("## Exit codes")[1]
    rows = re.findall(r"^\| (\d+) \|", section.split("\n## ")[0], re.MULTILINE)
    assert {int(code) for code in rows} == codes
    for page in PAGES:
        text = " ".join(page.read_text(encoding="utf-8").split())
        named = re.findall(r"exit(?:s with| code(?: is| of)?) (\d+)", text, re.IGNORECASE)
        assert {int(code) for code in named} <= codes, page


def test_documents_that_the_code_names_exist() -> None:
    for folder in ("memplan", "cli", "benchmarks", "tools", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8")):
                assert (ROOT / name).exists(), f"{file}: {name}"


def test_readme_and_architecture_stay_short() -> None:
    assert (ROOT / "README.md").stat().st_size <= 5_000
    assert (DOCS / "ARCHITECTURE.md").stat().st_size <= 11 * 1024


def test_the_tree_of_the_architecture_is_the_tree() -> None:
    tree = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8").split("memplan/\n├──")[1]
    named = set(re.findall(r"([a-z]+)/", tree.split("```")[0].replace("report/terminal", "")))
    folders = {path.parent.name for path in (ROOT / "memplan").glob("*/__init__.py")}
    assert folders - named == set()


def test_tables_are_what_the_records_say() -> None:
    for path, text in tables.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run python -m benchmarks.tables"


def is_without_gradient(schema: onnx.defs.OpSchema) -> bool:
    """Whether it reads floats and makes floats, is no function of others, and has no gradient."""
    sides = ((slot.types for slot in side) for side in (schema.inputs, schema.outputs))
    if schema.deprecated or not all("float" in str(list(types)) for types in sides):
        return False
    written = schema.has_function or schema.has_context_dependent_function
    return not written and ("", schema.name) not in registered()


def test_the_page_lists_the_operators_without_a_gradient() -> None:
    text = (DOCS / "how/gradients.md").read_text(encoding="utf-8")
    found = set()
    for name in {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}:
        with suppress(onnx.defs.SchemaError):  # of a later opset
            schema = onnx.defs.get_schema(name, 24)
            found |= {name} if is_without_gradient(schema) else set()
    assert set(re.findall(r"`(\w+)`", text.split("**Without a gradient**")[1])) == found
