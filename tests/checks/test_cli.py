"""python -m companion.checks, through main([...])."""

import re
import subprocess
import sys

import pytest

from companion.checks.__main__ import main

HERE = "tests.checks.attentions"


def run(capsys, *arguments):
    status = main(list(arguments))
    return status, *capsys.readouterr()


def test_a_right_attention_gives_status_0(capsys):
    status, out, err = run(capsys, "torch.nn.functional:scaled_dot_product_attention")
    assert (status, err) == (0, "")
    assert re.match(r"scaled_dot_product_attention: \d+ passed, 0 failed, \d+ skipped\n", out)


def test_a_wrong_one_gives_status_1_and_names_the_mistake(capsys):
    arguments = ("--arg", "d_model=8", "--arg", "num_heads=2")
    status, out, _ = run(capsys, f"{HERE}:ViewWithoutTranspose", *arguments)
    assert status == 1
    assert "1 failed" in out
    assert "2 heads" in out
    assert re.search(r"failed +head_split(.|\n)*without a transpose", out)


def test_a_markdown_table_on_request(capsys):
    status, out, _ = run(capsys, f"{HERE}:Unscaled", "--markdown")
    assert status == 1
    assert "| `scale` | failed | scores = 1 × q·k, expected 0.25: not divided at all |" in out


def test_options_reach_the_checks(capsys):
    assert run(capsys, f"{HERE}:Unscaled", "--unscaled", "--query-dim", "9")[0] == 0
    assert run(capsys, f"{HERE}:UniformRows")[0] == 0
    assert run(capsys, f"{HERE}:UniformRows", "--fully-masked", "zero")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_module:Name"], "cannot import no_such_module: ModuleNotFoundError"),
        (["torch.nn:NoSuchName"], "torch.nn has no NoSuchName"),
        (["torch.nn.MultiheadAttention"], "name must be package.module:Name"),
        (["torch.nn:MultiheadAttention"], r"MultiheadAttention\(\) raised TypeError: .*embed_dim"),
        (
            ["torch.nn:MultiheadAttention", "--arg", "embed_dim=5", "--arg", "num_heads=2"],
            r"MultiheadAttention\(embed_dim=5, num_heads=2\) raised .*divisible",
        ),
        (["torch.nn.functional:relu", "--arg", "x=1"], "relu is no class"),
        (["torch:float32"], "float32 cannot be called"),
        ([f"{HERE}:Single", "--arg", "x"], "--arg must be NAME=VALUE, got 'x'"),
        ([f"{HERE}:Single", "--mask-shape", "L_k B"], "mask_shape must name the axes"),
        ([f"{HERE}:Single", "--num-heads", "-1"], "num_heads must be at least 1"),
    ],
)
def test_what_cannot_be_made_is_one_clear_line_and_status_2(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert re.match(f"error: {message}", err)
    assert err.count("\n") == 1


@pytest.mark.slow
def test_the_exit_status_is_the_shells():
    command = [sys.executable, "-m", "companion.checks", "no_such_module:Name"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot import no_such_module")


@pytest.mark.parametrize("source", ["raise SystemExit(0)", "class A:\n def __init__(self): exit()"])
def test_a_module_that_leaves_has_not_passed(source, tmp_path, monkeypatch, capsys):
    (tmp_path / "leaves.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leaves", raising=False)
    assert main(["leaves:A"]) == 2
    assert "SystemExit" in capsys.readouterr().err
