"""The report: its three forms, and the failure that a test shows."""

import pytest

from companion.checks import AttentionCheckError, Report, Result, assert_attention, check_attention
from tests.checks.attentions import Single, Unscaled

RESULTS = (
    Result("sums", "passed", "Rows sum to 1.", "off by: below 5e-05", "dim=-1"),
    Result("scale", "failed", "Scores are scaled.", "1 <b> | 2", "divide by √d"),
    Result("mask", "skipped", "A mask hides keys.", "it takes no mask", "invert it"),
)
REPORT = Report("mine", "cross-attention, 1 head", RESULTS)


def test_names_by_status():
    assert (REPORT.passed, REPORT.failed, REPORT.skipped) == (("sums",), ("scale",), ("mask",))
    assert REPORT["mask"].seen == "it takes no mask"
    assert REPORT.findings == {"scale": "1 <b> | 2"}
    with pytest.raises(KeyError, match="no check is named 'x'; the checks are sums, scale, mask"):
        REPORT["x"]


def test_as_text_failures_come_first_with_their_hint():
    assert repr(REPORT).splitlines() == [
        "mine: 1 passed, 1 failed, 1 skipped",
        "(cross-attention, 1 head)",
        "",
        "failed   scale  1 <b> | 2",
        "         Scores are scaled.",
        "         Hint: divide by √d",
        "passed   sums   off by: below 5e-05",
        "skipped  mask   it takes no mask",
    ]


def test_as_html_everything_is_escaped():
    html = REPORT._repr_html_()
    assert html.startswith('<div class="check-report">')
    assert "1 &lt;b&gt; | 2" in html
    assert "<b>" not in html
    assert html.count("<tr class=") == 3
    assert "Hint: divide by √d" in html
    assert "dim=-1" not in html  # a hint is for a failure


def test_as_markdown_a_cell_stays_a_cell():
    lines = REPORT.to_markdown().splitlines()
    assert lines[0] == "**mine**: 1 passed, 1 failed, 1 skipped (cross-attention, 1 head)"
    assert lines[4] == "| `scale` | failed | 1 \\<b> \\| 2 | divide by √d |"
    assert lines[5] == "| `sums` | passed | off by: below 5e-05 |  |"


def test_a_report_without_failures_raises_nothing():
    Report("mine", "", RESULTS[:1]).raise_if_failed()
    assert_attention(Single())


def test_a_failure_names_property_number_and_hint():
    with pytest.raises(AttentionCheckError) as failure:
        assert_attention(Unscaled())
    text = str(failure.value)
    assert text.startswith("Unscaled fails 1 of 35 checks\n(cross-attention, 1 head, mask 'keep'")
    assert "scale: Scores are dot products of query and key over the root of their size." in text
    assert "    seen: scores = 1 × q·k, expected 0.25: not divided at all" in text
    assert "    hint: Scores are q·k / √d" in text


def test_the_same_seed_gives_the_same_report():
    assert repr(check_attention(Unscaled())) == repr(check_attention(Unscaled()))
