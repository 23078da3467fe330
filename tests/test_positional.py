"""Sinusoidal positions."""

import math

import pytest
import torch

from companion import SinusoidalPositionalEncoding, sinusoidal_encoding


@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
def test_every_entry_by_the_formula(d_model):
    encoding = sinusoidal_encoding(7, d_model, dtype=torch.float64)
    assert encoding.shape == (7, d_model)
    for t in range(7):
        for feature in range(d_model):
            wave = math.sin if feature % 2 == 0 else math.cos
            angle = t / 10_000 ** (2 * (feature // 2) / d_model)
            assert encoding[t, feature].item() == pytest.approx(wave(angle), abs=1e-12)


def test_a_shift_is_one_rotation_for_all_positions():
    """The relation that the paper chose the encoding for: p[t + 3] is a fixed matrix times p[t]."""
    encoding = sinusoidal_encoding(50, 8, dtype=torch.float64)
    rotation = torch.linalg.lstsq(encoding[:40], encoding[3:43]).solution
    torch.testing.assert_close(encoding[40:47] @ rotation, encoding[43:50], atol=1e-8, rtol=0)


def test_late_positions_are_as_exact_as_early_ones():
    """Angles are computed in double precision: float32 ones are off by 1e-3 at position 10,000."""
    exact = sinusoidal_encoding(10_001, 4, dtype=torch.float64)[-1]
    torch.testing.assert_close(
        sinusoidal_encoding(10_001, 4)[-1].double(), exact, atol=1e-7, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_module_adds_the_positions_and_keeps_the_dtype(dtype):
    x = torch.randn(2, 3, 5, 6).to(dtype)
    added = SinusoidalPositionalEncoding(6)(x)
    assert added.dtype == dtype
    assert torch.equal(added, x + sinusoidal_encoding(5, 6, dtype=dtype))


def test_a_sequence_can_be_continued():
    module, x = SinusoidalPositionalEncoding(6), torch.randn(2, 5, 6)
    parts = [module(x[:, :3]), module(x[:, 3:], start=3)]
    assert torch.equal(torch.cat(parts, dim=1), module(x))


def test_dropout_in_training_only():
    module, x = SinusoidalPositionalEncoding(6, dropout=0.5), torch.ones(2, 50, 6)
    torch.manual_seed(0)
    assert (module(x) == 0).double().mean().item() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(module.eval()(x), x + sinusoidal_encoding(50, 6))


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        sinusoidal_encoding(0, 4)
    with pytest.raises(TypeError, match="d_model must be an integer, got float"):
        sinusoidal_encoding(3, 4.0)
    with pytest.raises(ValueError, match="d_model must be at least 1, got -2"):
        SinusoidalPositionalEncoding(-2)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), got 1"):
        SinusoidalPositionalEncoding(4, dropout=1)
    with pytest.raises(ValueError, match="x must have 4 features on its last axis, got 3"):
        SinusoidalPositionalEncoding(4)(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="start must be at least 0, got -1"):
        SinusoidalPositionalEncoding(4)(torch.zeros(2, 4), start=-1)
