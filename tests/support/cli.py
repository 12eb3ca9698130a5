"""Calls the command line as the tests do, and makes its inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from typer.testing import CliRunner, Result

from flashsmith.cli import app

# Tests of commands build these two kernels. `select_config` chooses FITTING for SHAPE.
PLAIN = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"
FITTING = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_0_tiles+opt_softmax"
SHAPE = (1, 64, 2, 64)
RANDOM_INPUT = ("--batch", "1", "--seq-len", "64", "--heads", "2", "--device", "cpu")


def invoke(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def invoke_json(*args: object, code: int = 0) -> Any:
    return json.loads(invoke(*args, "--json", code=code).stdout)


def refused(*args: object, code: int = 2) -> str:
    """Returns the message of a command that fails, and asserts that it printed nothing else and no
    traceback."""
    result = invoke(*args, code=code)
    assert result.stdout == ""
    before, _, message = result.stderr.rpartition("error: ")
    assert message
    assert "Traceback" not in result.stderr
    assert "error" not in before
    return message


def make_inputs(
    dtype: torch.dtype = torch.float16, shape: Sequence[int] = SHAPE
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(*shape, generator=generator).to(dtype) for name in "qkv"}
