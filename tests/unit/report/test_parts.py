"""What both printers make of a report: rows that are left out, wide columns, hostile texts."""

from helpers.reports import text_of
from memplan.report.html.page import page
from memplan.report.parts import Column, Line, Notes, Report, Spelled, Table

SIZES = (
    Column(""),
    Column("name", "name"),
    Column("size", "bytes"),
    Column("at most", "bytes", rest=max),
    Column("each", "number"),
    Column("module", "phrase", wide=True),
)
ROWS = [
    ("new", "a", 1024, 1024, 7, "m.a"),
    ("gone", "b", -4096, 2048, "none", "m.b"),
    ("new", "c", 1, 4096, None, "m.c"),
    ("new", "d", 2048, 8192, Spelled("two", 2.0), "m.d"),
]


def table(**more: object) -> Table:
    return Table("Tensors", SIZES, ROWS, **more)  # type: ignore[arg-type]


def test_rows_that_are_left_out_are_summed_up() -> None:
    assert table().cut(4) == (ROWS, [])
    assert table().cut(None) == (ROWS, [])
    rows, rest = table().cut(2)
    assert rows == ROWS[:2]
    assert rest == [["2 more", None, 2049, 8192, None, None]]


def test_the_largest_rows_stay_in_their_order() -> None:
    rows, rest = table(weight=2, noun="kind").cut(2)
    assert rows == [ROWS[1], ROWS[3]]
    assert rest == [["2 more kinds", None, 1025, 4096, None, None]]


def test_text_has_the_first_rows_and_a_page_all_and_what_is_wide() -> None:
    report = Report([Line("answer"), table(most=2, below=[[("", "sum", 5, None, 8, "")]]), "end"])
    text = text_of(report)
    assert text.startswith("answer\n\nTensors\n")
    assert [line.split() for line in text.splitlines()[5:] if line.strip()] == [
        ["new", "a", "1.00", "KiB", "1.00", "KiB", "7"],
        ["gone", "b", "-4.00", "KiB", "2.00", "KiB", "none"],
        ["2", "more", "2.00", "KiB", "8.00", "KiB"],
        ["sum", "5", "B", "8"],
        ["end"],
    ]
    assert "m.a" not in text
    assert text_of(report, details=True).count("KiB") == 7
    shown = page(report)
    assert shown.count('<td title="m.') == 4
    assert '<td class="number" data-value="2.0">two</td>' in shown
    assert '<td class="number" data-value="-4096" title="-4,096 B">-4.00 KiB</td>' in shown


def test_what_there_is_nothing_of_is_left_out() -> None:
    report = Report([Line("answer"), Table("Nothing", SIZES, []), Notes([])])
    assert text_of(report) == "answer\n"
    assert "Nothing" not in page(report)
    assert "Assumptions" not in page(report)


def test_every_text_of_a_page_is_escaped() -> None:
    evil = "<b>&\x1b[31m"
    row = (evil, evil, evil, evil, Spelled(evil, 1.0), evil)
    parts = [Line(evil), evil, Table(evil, SIZES, [row], below=[[row]]), Notes([evil])]
    shown = page(Report(parts, evil, evil)).split("<script")[0]
    assert evil not in shown
    assert shown.count("&lt;b&gt;&amp;\\x1b[31m") > 15
    assert "<b>&" not in shown
