"""What a model learns from others: their mean probabilities, and nothing of the padding."""

import pytest
import torch
import torch.nn.functional as F

from companion.g2p import model_files, recipes, training
from companion.g2p.distillation import expectations, greedy_word_error_rate, pronounce_together
from companion.g2p.evaluation import predict
from companion.g2p.lexicon import (
    END,
    encode_pronunciations,
    encode_words,
    load_lexicon,
    select_split,
)
from companion.g2p.metrics import error_rates
from companion.g2p.model_files import load_model, save_model
from companion.g2p.models import RecurrentG2P
from companion.g2p.recipes import Recipe
from companion.g2p.training import train, training_steps

PAIRS = [
    ("cab", ("K", "AE", "B")),
    ("a", ("AH",)),
    ("a", ("EY",)),
    ("bad", ("B", "AE", "D")),
]


def build():
    return RecurrentG2P(d_model=4, embedding_dim=3)


def tiny(seed=0):
    torch.manual_seed(seed)
    return build().eval()


def one_hot(pairs):
    """Targets that say what the dictionary says."""
    rows = {pair: encode_pronunciations([pair[1]])[0, 1:] for pair in pairs}
    return {pair: F.one_hot(row, 42).float() for pair, row in rows.items()}


def test_expectations_are_the_mean_of_the_teachers_probabilities():
    teachers = [tiny(1), tiny(2)]
    expected = expectations(teachers, PAIRS)
    assert set(expected) == set(PAIRS)
    for pair, rows in expected.items():
        letters, lengths = encode_words([pair[0]])
        phonemes = encode_pronunciations([pair[1]])
        one, two = (teacher(letters, lengths, phonemes)[0].softmax(-1) for teacher in teachers)
        assert rows.shape == (len(pair[1]) + 1, 42)
        torch.testing.assert_close(rows.float(), (one + two) / 2, atol=1e-3, rtol=0)


def test_expectations_do_not_depend_on_the_batch():
    together, apart = (expectations([tiny()], PAIRS, batch_size=size) for size in (4, 1))
    for pair in PAIRS:
        torch.testing.assert_close(together[pair], apart[pair], atol=1e-3, rtol=0)


def test_expectations_hold_no_more_memory_than_they_need():
    (rows,) = expectations([tiny()], PAIRS[:1]).values()
    assert rows.untyped_storage().nbytes() == 2 * rows.numel()


def test_expectations_need_a_teacher_and_a_batch():
    with pytest.raises(ValueError, match="at least one model"):
        expectations([], PAIRS)
    with pytest.raises(ValueError, match="batch_size"):
        expectations([tiny()], PAIRS, batch_size=0)


@pytest.mark.parametrize("name", ["recurrent", "multi_head"])
def test_the_word_error_rate_is_that_of_greedy_decoding(name):
    words = dict(list(select_split(load_lexicon(), "valid").items())[::25])
    pairs = [(word, p) for word, pronunciations in words.items() for p in pronunciations]
    model = load_model(name)
    counted = greedy_word_error_rate(expectations([model], pairs))
    assert counted == pytest.approx(error_rates(predict(model, words), words).word_error_rate)
    assert 0.1 < counted < 0.5


def test_a_word_error_rate_needs_words():
    with pytest.raises(ValueError, match="at least one word"):
        greedy_word_error_rate({})


def test_sure_teachers_who_agree_with_the_dictionary_teach_what_it_does():
    by_teacher, by_dictionary = tiny(), tiny()
    options = {"steps": 5, "batch_size": 3, "label_smoothing": 0.0}
    learned = list(training_steps(by_teacher, PAIRS, targets=one_hot(PAIRS), **options))
    assert learned == pytest.approx(list(training_steps(by_dictionary, PAIRS, **options)))


def test_a_student_comes_to_expect_what_its_teacher_does():
    teacher, student = tiny(1), tiny(2)
    targets = expectations([teacher], PAIRS)
    before = far_apart(teacher, student)
    for _ in training_steps(student, PAIRS, steps=300, learning_rate=0.03, targets=targets):
        pass
    assert far_apart(teacher, student) < before / 5


def far_apart(one, other):
    answers = [expectations([model], PAIRS) for model in (one, other)]
    return max(float((answers[0][p] - answers[1][p]).abs().max()) for p in PAIRS)


def single_minded(*phonemes):
    """A model that expects the given phonemes, the first one most, whatever it reads and wrote."""
    model = tiny()
    with torch.no_grad():
        model.to_logits.weight.zero_()
        model.to_logits.bias.zero_()
        for rank, phoneme in enumerate(phonemes):
            model.to_logits.bias[phoneme] = 9.0 - rank
    return model


def test_one_teacher_pronounces_as_it_does_alone():
    words = ["phonemes", "cab", "attention"]
    model = load_model("multi_head")
    pairs = pronounce_together([model], words, batch_size=2)
    assert dict(pairs) == predict(model, words)
    assert [word for word, _ in pairs] == ["cab", "phonemes", "attention"]  # the shortest first


def test_teachers_go_on_from_what_is_likeliest_in_their_mean():
    """The greedy pronunciation is by definition the one that the mean expects step by step."""
    teachers = [load_model("recurrent"), load_model("self_attention")]
    words = list(select_split(load_lexicon(), "valid"))[::300]
    pairs = pronounce_together(teachers, words)
    assert {word for word, _ in pairs} == set(words)
    assert greedy_word_error_rate(expectations(teachers, pairs)) == 0
    alone = [predict(teacher, words) for teacher in teachers]
    assert all(dict(pairs) != each for each in alone)


def test_words_without_a_pronunciation_are_left_out():
    assert pronounce_together([single_minded(END)], ["cab"]) == []  # over before it began
    assert pronounce_together([single_minded(3)], ["cab"]) == []  # never over


def test_pronouncing_together_takes_teachers_and_words():
    with pytest.raises(ValueError, match="at least one model"):
        pronounce_together([], ["cab"])
    with pytest.raises(ValueError, match="at least one word"):
        pronounce_together([tiny()], [])
    with pytest.raises(TypeError, match="list of words"):
        pronounce_together([tiny()], "cab")
    with pytest.raises(ValueError, match="batch_size"):
        pronounce_together([tiny()], ["cab"], batch_size=0)


def test_a_recipe_names_the_teachers(monkeypatch, tmp_path):
    """The student of a teacher that expects END at once expects it too."""
    teacher = single_minded(END)
    lexicon = {"cab": PAIRS[0][1:], "a": (("AH",), ("EY",)), "abducted": PAIRS[0][1:]}
    monkeypatch.setattr(training, "load_lexicon", lambda: lexicon)
    monkeypatch.setattr(
        training, "unlabelled_words", lambda given: ["bad"] if given == lexicon else 0
    )
    monkeypatch.setattr(model_files, "CHECKPOINTS", tmp_path)
    monkeypatch.setitem(recipes.RECIPES, "teacher", Recipe("Teacher", 1, build))
    options = {"learning_rate": 0.2, "dtype": torch.bfloat16}
    student = Recipe("Student", 1, build, teachers=("teacher",), options=options)
    monkeypatch.setitem(recipes.RECIPES, "student", student)

    with pytest.raises(FileNotFoundError, match=r"teacher\.safetensors"):
        train("student", steps=40, seed=0, folder=tmp_path / "runs")
    facts = {"name": "teacher", "command": "", "seed": 0, "steps": 1, "wall_minutes": 0.0}
    save_model(teacher, tmp_path / "teacher.safetensors", facts)
    path = train("student", steps=40, seed=0, folder=tmp_path / "runs")
    phonemes, _ = model_files.load_model(path).pronounce(*encode_words(["cab", "a"]))
    assert phonemes.tolist() == [[2], [2]]


def test_a_student_learns_further_words_as_its_teachers_pronounce_them(monkeypatch, tmp_path):
    lexicon = {"cab": PAIRS[0][1:], "abducted": PAIRS[0][1:]}  # the second is a test word
    teacher, learned = tiny(), {}

    def pronounce(teachers, words, progress):
        assert teachers == [teacher]
        return [(word, ("B",)) for word in words]

    def steps(model, pairs, **options):
        learned.update(options, pairs=pairs)
        return iter([0.0])

    monkeypatch.setattr(training, "load_lexicon", lambda: lexicon)
    monkeypatch.setattr(training, "load_model", {"teacher": teacher}.get)
    monkeypatch.setattr(training, "unlabelled_words", lambda given: [f"{word}s" for word in given])
    monkeypatch.setattr(training, "pronounce_together", pronounce)
    monkeypatch.setattr(training, "training_steps", steps)
    monkeypatch.setitem(recipes.RECIPES, "student", Recipe("S", 1, build, teachers=("teacher",)))
    train("student", steps=1, seed=0, folder=tmp_path)
    assert learned["pairs"] == [PAIRS[0], ("cabs", ("B",)), ("abducteds", ("B",))]
    assert set(learned["targets"]) == set(learned["pairs"])
