"""What the page "Word playground" says about its words is what the models do."""

import re
from functools import cache
from pathlib import Path

import pytest

from companion.g2p.evaluation import predict
from companion.g2p.heads import Head, all_heads, heads_off
from companion.g2p.lexicon import PHONEMES, encode_words, load_lexicon, split_of
from companion.g2p.model_files import CHECKPOINTS, load_model
from companion.g2p.recipes import G2PModel
from companion.g2p.transformer import TransformerG2P

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book/playground.md").read_text("utf-8")
TEXT = " ".join(re.sub(r"\{try\}`(.*?)`", r"\1", PAGE).split())
TABLE = re.findall(r"^\| \{try\}`(.*?)` \| (.*?) \| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)


@cache
def model(name: str) -> G2PModel:
    if not (CHECKPOINTS / f"{name}.safetensors").exists():
        pytest.skip(f"{name} is not trained yet")
    return load_model(name)


@pytest.fixture
def multi_head() -> TransformerG2P:
    found = model("multi_head")
    assert isinstance(found, TransformerG2P)
    return found


def percents(name: str, word: str) -> list[list[int]]:
    """A row a phoneme, a column a letter, as the page shows them."""
    _, weights = model(name).pronounce(*encode_words([word]))
    return [[round(100 * weight) for weight in row] for row in weights[0].tolist()]


def spoken(one: G2PModel, word: str) -> str:
    return " ".join(predict(one, [word])[word])


def test_words_to_try_are_from_the_test_split():
    words = set(re.findall(r"\{try\}`(.*?)`", PAGE)) - {"phoneme"}
    assert len(words) > 7
    assert {word: split_of(word) for word in words} == dict.fromkeys(words, "test")
    assert words <= set(load_lexicon())
    assert split_of("phoneme") != "train"


def test_the_table_of_failures_has_the_dictionarys_answers():
    assert len(TABLE) == 5
    for word, dictionary, _, _ in TABLE:
        assert dictionary == " or ".join(" ".join(p) for p in load_lexicon()[word])


@pytest.mark.parametrize(("name", "column"), [("additive", 2), ("multi_head", 3)])
def test_the_table_of_failures_has_the_models_answers(name, column):
    answers = {row[0]: spoken(model(name), row[0]) for row in TABLE}
    assert answers == {row[0]: row[column] for row in TABLE}
    for word, dictionary, *_ in TABLE:
        assert answers[word] not in dictionary.split(" or ")


def test_words_named_in_the_table_sound_as_it_says():
    lexicon = load_lexicon()
    for word, start in {
        "school": ("S", "K"),
        "schemes": ("S", "K"),
        "scheming": ("S", "K"),
    }.items():
        assert lexicon[word][0][:2] == start
    assert lexicon["schnapps"][0][0] == "SH"
    assert {split_of(word) for word in ("schemes", "scheming")} == {"train"}
    endings = {word: lexicon[word][0][-2:] for word in ("eager", "pager", "picked", "naked")}
    assert endings == {
        "eager": ("G", "ER"),
        "pager": ("JH", "ER"),
        "picked": ("K", "T"),
        "naked": ("AH", "D"),
    }


def test_each_model_knows_words_that_the_other_does_not():
    lexicon = load_lexicon()
    right = {"additive": {"iron"}, "multi_head": {"indict", "tow", "cough"}}
    for name, words in right.items():
        answers = predict(model(name), ["iron", "indict", "tow", "cough"])
        assert {word for word, answer in answers.items() if answer in lexicon[word]} == words


def test_the_additive_model_passes_over_silent_letters():
    k, n, *_ = percents("additive", "knee")[0]
    assert f"gives {n} % of the weight to the n, and only {k} % to the k" in TEXT
    most = max(row[2] for row in percents("additive", "tight"))
    assert f"no row of the additive model gives more than {most} % to the g" in TEXT
    assert spoken(model("additive"), "knee") == "N IY"
    assert spoken(model("additive"), "tight") == "T AY T"


def test_the_transformer_looks_at_a_silent_letter(multi_head):
    k, n, *_ = percents("multi_head", "knee")[0]
    assert f"mean gives {k} % to the k of knee and {n} % to the n" in TEXT
    assert spoken(multi_head, "knee") == "N IY"


def without(multi_head: TransformerG2P, kind: str, *words: str) -> list[str]:
    with heads_off(multi_head, [head for head in all_heads(multi_head) if head.kind == kind]):
        return [spoken(multi_head, word) for word in words]


def test_without_cross_heads_all_words_are_one(multi_head):
    assert len(set(without(multi_head, "cross", "knee", "husband", "cough"))) == 1


def test_without_encoder_heads_a_silent_letter_is_said(multi_head):
    (answer,) = without(multi_head, "encoder", "tight")
    assert f"so tight becomes {answer}." in TEXT
    assert "G" in answer


def test_without_decoder_heads_the_model_stutters(multi_head):
    (answer,) = without(multi_head, "decoder", "knuckled")
    assert "knuckled turns into a stutter" in TEXT
    assert len(answer.split()) == 40


@pytest.mark.slow
def test_which_words_survive_a_head(multi_head):
    words, heads = ["tight", "minuteman", "husband"], all_heads(multi_head)
    whole, changed = predict(multi_head, words), dict.fromkeys(words, 0)

    def count(head: Head) -> None:
        with heads_off(multi_head, [head]):
            for word, answer in predict(multi_head, words).items():
                changed[word] += answer != whole[word]

    for head in heads:
        count(head)
    assert changed["tight"] == changed["husband"] == 0
    for wrong in ("minuteman", "husband"):
        assert whole[wrong] not in load_lexicon()[wrong]
    assert f"whichever of the {len(heads)} heads you switch off" in TEXT
    assert f"minuteman does not: {changed['minuteman']} of the {len(heads)} change it" in TEXT


def test_every_phoneme_has_an_example():
    examples = dict(
        re.findall(r"([A-Z]{1,2}) \*([a-z]+)\*", PAGE.partition("## How do you read")[2])
    )
    assert sorted(examples) == sorted(PHONEMES)
    for phoneme, word in examples.items():
        assert all(phoneme in p for p in load_lexicon()[word][:1]), word
