"""Words: what no message, help text or document says, and what to say instead; numbers before nouns
that are counted; modules that say what they are for."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
BANNED = {
    r"there is no such": "unknown X 'y'",
    r"\bnobody\b(?! else)": "unused; nothing; no reader (people, not machines)",
    r"\bsomebody\b": "a caller; another (people, not machines)",
    r"\bthis very\b|\bthat very\b": "this",
    r"points of the best possible": "percentage points from optimal",
    r"\bits bits:": "outputs are bit-identical to ...",
    r"\blower only by\b": "to go lower: ...",
    r"\ba percentage of what\b": "expected a size, got a percentage",
    r"\bdoes not go with\b": "cannot be combined with",
    r"\bevery option on its default\b": "default options",
}
IN_MESSAGES = BANNED | {r"\b(?:is|are) wanted\b": "expected X, got 'y'"}
NOUNS = (
    "node|tensor|run|output|shape|loop|input|module|name|model|parameter|operator|entry|draw|copy|"
    "dimension|initializer|bottleneck|pair|recomputed node|more output|more input|thread|branch"
)
PLURAL = re.compile(rf" (?:{NOUNS})e?s\b".replace("entry", "entrie").replace("copy", "copie"))
# What is always several: a total that something is said to be a part of; limits.
PARTS = re.compile(r"(?:\bof|at most|more than|takes|above|several) $")


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings, but those of commands, which are help."""
    silent: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
        if isinstance(node, ast.FunctionDef) and node.name == "command":
            yield node.lineno, ast.get_docstring(node) or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in silent:
            yield node.lineno, str(node.value)


def banned(text: str, phrases: dict[str, str] = BANNED) -> Iterator[str]:
    """The banned phrases in a text, with better ones."""
    for phrase, better in phrases.items():
        if re.search(phrase, text, re.IGNORECASE):
            yield f"{phrase}: say {better}"


def counted_wrongly(tree: ast.AST) -> Iterator[int]:
    """Lines with a number in front of a noun that is always in the plural: "1 nodes"."""
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr):
            continue
        before = ""
        for part, following in zip(text.values, [*text.values[1:], None], strict=True):
            if (
                isinstance(part, ast.FormattedValue)
                and isinstance(following, ast.Constant)
                and PLURAL.match(str(following.value))
                and not PARTS.search(before)
            ):
                yield part.lineno
            before = str(part.value) if isinstance(part, ast.Constant) else ""


def test_words_of_every_module() -> None:
    """No message has a phrase that is banned or puts a number before a fixed plural
    (``memplan.units.counted`` chooses), and every module says what it is for."""
    faults = []
    for path in (path for folder in ("memplan", "cli") for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, text in messages(tree):
            faults += [f"{path}:{line}: {fault}" for fault in banned(text, IN_MESSAGES)]
        faults += [f"{path}:{line}: a fixed plural" for line in counted_wrongly(tree)]
        if ROOT / "memplan" in path.parents and not ast.get_docstring(tree):
            faults.append(f"{path}: no docstring")
    assert faults == []


def test_no_document_has_a_phrase_that_is_banned() -> None:
    faults = [
        f"{page}: {fault}"
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for fault in banned(page.read_text(encoding="utf-8"))
        if page.name != "benchmarks.md"  # tables from records, by benchmarks.tables
    ]
    assert faults == []


def test_the_glossary_has_one_row_a_word() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
