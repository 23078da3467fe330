"""The word playground: its JavaScript computes what torch computes, and its page can be used."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from companion.g2p.evaluation import predict
from companion.g2p.export import export_model
from companion.g2p.heads import Head, all_heads, heads_off
from companion.g2p.lexicon import (
    decode_phonemes,
    encode_pronunciations,
    encode_words,
    load_lexicon,
    select_split,
)
from companion.g2p.model_files import CHECKPOINTS, load_model
from companion.g2p.recipes import G2PModel

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build/html"
SCRIPT = ROOT / "book/_static/playground/model.js"
WORDS, TIES, TOLERANCE = 1000, 5, 1e-2
TIMEOUT = 60_000  # a busy machine
expect.set_options(timeout=TIMEOUT)
CHATTER = {"debug", "info", "log"}  # the theme says what it did
RUN = """
    ([name, words, off]) => {
        const model = companionG2P.readModel(companionModels[name]);
        return words.map((word) => companionG2P.pronounce(model, word, new Set(off)).map(
            ({ phoneme, logits, weights }) => [phoneme, [...logits.slice(2)], [...weights]]));
    }"""

Steps = list[tuple[str, list[float], list[float]]]  # phoneme, logits from END on, weights
RunScript = Callable[..., list[Steps]]


# --------------------------------------------------------------------------------------------------
# The forward pass


@pytest.fixture(params=["additive", "multi_head"])
def name(request: pytest.FixtureRequest) -> str:
    if not (CHECKPOINTS / f"{request.param}.safetensors").exists():
        pytest.skip(f"{request.param} is not trained yet")
    return request.param


@pytest.fixture
def run_script(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> Iterator[RunScript]:
    """The page's script and one model, in Node if it is here, else in Chromium."""
    weights = export_model(name, tmp_path).read_text("utf-16")
    script = SCRIPT.read_text("utf-8") + weights

    def in_node(*arguments: Any) -> list[Steps]:
        call = f"console.log(JSON.stringify(({RUN})({json.dumps([name, *arguments])})))"
        (tmp_path / "run.js").write_text(script + call, "utf-8")
        run = subprocess.run(["node", tmp_path / "run.js"], capture_output=True, check=True)
        return json.loads(run.stdout)

    if shutil.which("node"):
        yield in_node
        return
    page = request.getfixturevalue("browser").new_page()
    page.add_script_tag(content=script)
    yield lambda *arguments: page.evaluate(RUN, [name, *arguments])
    page.close()


@torch.no_grad()
def compare(model: G2PModel, words: list[str], results: list[Steps]) -> tuple[int, float]:
    """How many words differ, and the largest difference of a logit after the same phonemes."""
    written = [tuple(step[0] for step in steps if step[0] != "END") for steps in results]
    theirs = model(*encode_words(words), encode_pronunciations(written))[..., 2:]  # from END on
    ours = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor([step[1] for step in steps]) for steps in results], batch_first=True
    )
    steps_of_each = torch.tensor([len(steps) for steps in results])
    real = torch.arange(ours.shape[1]) < steps_of_each[:, None]
    expected = predict(model, words)
    different = sum(ours != expected[word] for word, ours in zip(words, written, strict=True))
    return different, float((ours - theirs[:, : ours.shape[1]])[real].abs().max())


def test_phonemes_and_logits_are_those_of_torch(name: str, run_script: RunScript) -> None:
    test = list(select_split(load_lexicon(), "test"))
    words = [test[index * len(test) // WORDS] for index in range(WORDS)]
    ties, largest = compare(load_model(name), words, run_script(words, []))
    print(f"{name}: {ties} of {WORDS} words differ, logits by at most {largest:.4f}")
    # A word may differ where two phonemes are as likely: the logits are the same all the same.
    assert ties <= TIES
    assert largest < TOLERANCE


def test_weights_are_those_of_torch(name: str, run_script: RunScript) -> None:
    model = load_model(name)
    for word, steps in zip(["phoneme", "'tis"], run_script(["phoneme", "'tis"], []), strict=True):
        phonemes, weights = model.pronounce(*encode_words([word]))
        assert [step[0] for step in steps] == [*decode_phonemes(phonemes[0].tolist()), "END"]
        ours = torch.tensor([step[2] for step in steps])
        torch.testing.assert_close(ours, weights[0], atol=2e-3, rtol=0)


OFF = [
    ["cross 1.1", "cross 2.3"],
    ["decoder 1.2", "decoder 3.4"],
    ["encoder 2.1", "encoder 3.2", "cross 3.1"],
]


@pytest.mark.parametrize("name", ["multi_head"], indirect=True)
@pytest.mark.parametrize("off", OFF, ids=" ".join)
def test_a_head_is_off_as_in_torch(name: str, run_script: RunScript, off: list[str]) -> None:
    model = load_model(name)
    words = ["attention", "phoneme", "teenager"]
    heads: list[Head] = [head for head in all_heads(model) if str(head) in off]
    assert len(heads) == len(off)
    whole = run_script(words, [])
    results = run_script(words, off)
    with heads_off(model, heads):
        ties, largest = compare(model, words, results)
    assert ties == 0
    assert largest < TOLERANCE
    moved = [abs(a - b) for a, b in zip(whole[0][0][1], results[0][0][1], strict=True)]
    assert max(moved) > 10 * TOLERANCE  # it does something


# --------------------------------------------------------------------------------------------------
# The page


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[tuple[Page, list[str]]]:
    """The page, and what is said in its console."""
    if not (SITE / "book/playground.html").exists():
        pytest.skip("the site is not built with the playground: make book")
    page, said = new_page(browser), []
    page.on("console", lambda message: message.type in CHATTER or said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{address}book/playground.html")
    yield page, said
    page.close()


@pytest.fixture
def playground(opened: tuple[Page, list[str]]) -> Iterator[Page]:
    """The page as it is when it opens; no test may make it write to the console."""
    page, said = opened
    expect(answer(page, "multi_head")).to_have_text(re.compile("[A-Z]+"))
    page.get_by_label("An English word").fill("phoneme")
    expect(answer(page, "additive")).to_have_text("F OW N IY M")
    expect(page.get_by_role("status")).to_contain_text("phoneme: ")
    yield page
    assert said == []


def new_page(browser: Browser) -> Page:
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT)
    return page


def answer(page: Page, name: str) -> Any:
    return page.locator(f"section[aria-labelledby=playground-{name}] .playground-answer")


def table(page: Page, name: str) -> Any:
    return page.locator(f"section[aria-labelledby=playground-{name}] table")


def test_typing_gives_phonemes_and_a_table(playground: Page) -> None:
    box = playground.get_by_label("An English word")
    box.fill("")
    box.press_sequentially("Knee")
    expect(answer(playground, "additive")).to_have_text("N IY")
    rows = table(playground, "additive").locator("tbody tr")
    expect(rows).to_have_count(3)
    assert table(playground, "additive").locator("thead th").all_inner_texts() == list("knee")
    assert rows.locator("th").all_inner_texts() == ["N", "IY", "END"]
    for row in rows.all():
        percents = [int(text or 0) for text in row.locator("td").all_inner_texts()]
        assert sum(percents) == pytest.approx(100, abs=3)
    status = playground.get_by_role("status")
    expect(status).to_contain_text("knee: ")
    expect(status).to_contain_text("N IY")


def test_a_word_in_the_text_is_a_button(playground: Page) -> None:
    word = playground.locator("button.try").nth(1)
    text = word.inner_text()
    word.focus()
    playground.keyboard.press("Enter")
    expect(playground.get_by_label("An English word")).to_have_value(text)
    expect(playground.get_by_role("status")).to_contain_text(f"{text}: ")
    playground.locator("button.try").first.click()
    expect(playground.get_by_role("status")).to_contain_text("phoneme: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Type a word."),
        ("   ", "Type a word."),
        ("two words", "One word at a time"),
        ("r2d2", "a to z and the apostrophe, but not: 2"),
        ("naïve", "but not: ï"),
        ("слово", "but not: с л о в"),
        ("😀", "but not: 😀"),
        ("<b>x</b>", "but not: < > /"),
        ("a" * 60, "That is 60 letters."),
    ],
)
def test_what_cannot_be_read_is_explained(playground: Page, text: str, message: str) -> None:
    box = playground.get_by_label("An English word")
    box.fill(text)
    expect(playground.get_by_role("status")).to_contain_text(message)
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(answer(playground, "additive")).to_be_hidden()
    box.fill("don’t")
    expect(answer(playground, "additive")).to_have_text("D OW N T")
    expect(box).not_to_have_attribute("aria-invalid", "true")


def test_the_longest_word_is_that_of_the_dictionary(playground: Page) -> None:
    longest = max(load_lexicon(), key=len)
    box = playground.get_by_label("An English word")
    box.fill(longest)
    expect(playground.get_by_role("status")).to_contain_text(f"{longest}: ")
    box.fill(longest + "s")
    expect(playground.get_by_role("status")).to_contain_text(f"dictionary has {len(longest)},")


def test_heads_are_switched_by_keyboard(playground: Page) -> None:
    multi_head = answer(playground, "multi_head")
    whole = multi_head.inner_text()
    playground.locator(".playground summary").focus()
    playground.keyboard.press("Enter")
    playground.get_by_role("button", name="All cross heads off").focus()
    playground.keyboard.press("Enter")
    expect(multi_head).not_to_have_text(whole)
    note = playground.locator(".playground-note")
    expect(note).to_have_text(f"With all heads: {whole}")
    expect(playground.get_by_role("status")).to_contain_text("with 12 of its heads off")
    blind = multi_head.inner_text()  # it does not see the letters: the same for every word
    playground.get_by_label("An English word").fill("knee")
    expect(note).not_to_contain_text(whole)
    expect(multi_head).to_have_text(blind)
    playground.get_by_role("button", name="All cross heads on").click()
    expect(note).to_have_text("")
    playground.get_by_label("cross 1.1", exact=True).focus()
    playground.keyboard.press("Space")
    expect(playground.get_by_role("status")).to_contain_text("heads off")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_all_that_can_be_opened_is_accessible(
    playground: Page, opened: tuple[Page, list[str]], width: int, scheme: str
) -> None:
    playground.set_viewport_size({"width": width, "height": 900})
    playground.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
    playground.locator(".playground summary").click()
    for word in [max(load_lexicon(), key=len), "r2d2"]:
        playground.get_by_label("An English word").fill(word)
        expect(playground.get_by_role("status")).to_contain_text(word if word.isalpha() else "2")
        assert playground.evaluate("document.documentElement.scrollWidth") <= width
        report = Axe().run(playground)
        assert report.violations_count == 0, report.generate_report()
    opened[1].clear()  # axe asks for style sheets where the theme's imports are not


def test_one_heads_weights_can_be_shown(playground: Page) -> None:
    first = table(playground, "multi_head").locator("tbody tr").first
    mean = first.inner_text()
    playground.get_by_label("Show the weights of").select_option("cross 3.2")
    expect(first).not_to_have_text(mean)


def test_from_disk(browser: Browser) -> None:
    page = new_page(browser)
    page.goto(f"{SITE.as_uri()}/book/playground.html")
    expect(answer(page, "additive")).to_have_text("F OW N IY M")
    page.close()


def test_without_scripts_the_page_says_what_it_would_show(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}book/playground.html")
    expect(page.locator(".playground")).to_contain_text("python -m companion.g2p pronounce")
    context.close()


def test_a_weight_that_does_not_load_is_said(browser: Browser, address: str) -> None:
    page = new_page(browser)
    page.route("**/additive.js", lambda route: route.abort())
    page.goto(f"{address}book/playground.html")
    expect(page.get_by_role("status")).to_contain_text("could not be loaded")
    page.close()


def test_answers_are_quick(browser: Browser, address: str) -> None:
    """Counted in the page's own processor time, so that a busy machine does not matter."""
    page = new_page(browser)
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds() -> float:
        metrics = meter.send("Performance.getMetrics")["metrics"]
        return next(m["value"] for m in metrics if m["name"] == "TaskDuration")

    page.goto(f"{address}book/playground.html")
    expect(answer(page, "multi_head")).to_have_text(re.compile("[A-Z]+"))
    first = seconds()
    words = ["attention", "teenager", "husband", "universal", "whispering"]
    page.evaluate(
        """(words) => {
            const box = document.querySelector("#playground-word");
            for (const word of words) {
                box.value = word;
                box.form.requestSubmit();
            }
        }""",
        words,
    )
    each = (seconds() - first) / len(words)
    print(f"first answer: {first:.2f} s; a word in both models: {each:.3f} s")
    assert 0 < first < 2
    assert 0 < each < 0.2
    page.close()
