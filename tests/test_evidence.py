"""The card that closes a claim."""

import json
from html.parser import HTMLParser

import pytest

from companion.evidence import MIME_TYPE, claim

HOLDS = {"number": 7, "text": "It is fast.", "measured": {"time": "3 ms"}, "verdict": "holds"}


def test_text_shows_everything():
    shown = repr(claim(**{**HOLDS, "measured": {"time": "3 ms", "memory": "2 MB"}}))
    assert shown == "Claim 7: It is fast.\n  time: 3 ms\n  memory: 2 MB\nHolds."


@pytest.mark.parametrize(
    ("verdict", "because", "sentence"),
    [
        ("holds", "", "Holds."),
        ("holds", "by 3 times", "Holds: by 3 times."),
        ("holds when", "keys are short", "Holds when keys are short."),
        ("misleading", "it is not", "Misleading because it is not."),
    ],
)
def test_verdict_is_a_sentence(verdict, because, sentence):
    assert claim(**{**HOLDS, "verdict": verdict, "because": because}).verdict_text == sentence


def test_bundle_has_text_html_and_data():
    card = claim(**HOLDS, because="of 3 ms")
    bundle = card._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/plain"] == repr(card)
    assert bundle["text/html"] == card._repr_html_()
    assert json.loads(json.dumps(bundle[MIME_TYPE])) == {
        "number": 7,
        "claim": "It is fast.",
        "measured": [["time", "3 ms"]],
        "verdict": "holds",
        "because": "of 3 ms",
    }


def test_html_escapes_every_text():
    class Reader(HTMLParser):
        text = tags = ""

        def handle_starttag(self, tag, attributes):
            self.tags += f"<{tag}>"

        def handle_data(self, data):
            self.text += data

    card = claim(
        1, "<b>a</b> & b", measured={"<i>x</i>": "<u>1</u> & 2"}, verdict="misleading",
        because="1 <s>2</s> & 3",
    )  # fmt: skip
    reader = Reader()
    reader.feed(card._repr_html_())
    assert not any(tag in reader.tags for tag in ("<b>", "<i>", "<u>", "<s>"))
    for text in ("<b>a</b> & b", "<i>x</i>", "<u>1</u> & 2", "1 <s>2</s> & 3"):
        assert text in reader.text


def test_measured_is_copied():
    measured = {"time": "3 ms"}
    card = claim(**{**HOLDS, "measured": measured})
    measured["time"] = "9 ms"
    assert card.measured == {"time": "3 ms"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"number": 0}, "number must be from 1 to 18, got 0"),
        ({"number": 19}, "number must be from 1 to 18, got 19"),
        ({"measured": {}}, "at least one measured value"),
        ({"verdict": "true"}, "one of holds, holds when, misleading, got 'true'"),
        ({"verdict": "holds when"}, "'holds when' needs a reason: because="),
        ({"verdict": "misleading"}, "'misleading' needs a reason: because="),
    ],
)
def test_claim_refuses(wrong, message):
    with pytest.raises(ValueError, match=message):
        claim(**{**HOLDS, **wrong})
