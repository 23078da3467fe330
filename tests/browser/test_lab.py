"""The explorers in JupyterLab: a table until the cell is run, then what the page shows."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import Browser, expect

from companion.explore import explore_weights

CELL = """import torch
from companion.explore import explore_weights

explore_weights(torch.eye(3), "abc")"""
PATIENCE = 120_000  # milliseconds; a busy machine


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab that knows one notebook, from somebody else."""
    shown = {"text/html": explore_weights(torch.eye(3), "abc")._repr_html_(), "text/plain": ""}
    output = new_output("execute_result", data=shown, execution_count=1)
    notebook = new_notebook(cells=[new_code_cell(CELL, execution_count=1, outputs=[output])])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "chapter.ipynb")
    places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    options = ["--no-browser", "--allow-root", "--ServerApp.port=0", "--ServerApp.ip=127.0.0.1"]
    log = tmp_path / "lab.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "jupyter", "lab", *options, f"--ServerApp.root_dir={tmp_path}"],
            stdout=errors,
            stderr=errors,
            env={**os.environ, **{place: str(tmp_path / place) for place in places}},
        ) as server,
    ):
        try:
            while (address := re.search(r"http://127\S+", log.read_text("utf-8"))) is None:
                assert server.poll() is None, log.read_text("utf-8")
                time.sleep(0.2)
            yield address[0].replace("/lab?", "/lab/tree/chapter.ipynb?")
        finally:
            server.terminate()


def test_an_explorer_in_jupyterlab(browser: Browser, lab: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE)
    page.goto(lab)
    explorer = page.locator("figure.explore")
    expect(explorer.locator("table")).to_be_visible(timeout=PATIENCE)
    assert explorer.locator("button").count() == 0  # a notebook is not trusted before it is run

    page.get_by_text("| Idle").wait_for()
    page.locator(".jp-Notebook .cm-content").first.click()
    page.keyboard.press("Shift+Enter")
    explorer.locator("button").nth(1).click()
    expect(explorer).to_contain_text("b → b 100 %")
    expect(explorer.locator("details table")).to_be_hidden()
    page.close()
