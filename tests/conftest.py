"""What all tests have in common, also in the kernels that nbval starts."""

import os

# Before torch is imported. Numbers then do not depend on the number of cores.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.load_profile("ci")  # the same examples on every run, without a deadline


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let nbval wait for a cell's output: its own 5 s are too few on a busy machine."""
    if hasattr(item, "output_timeout"):
        item.output_timeout = 60
