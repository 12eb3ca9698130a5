"""The tensors of `flashsmith run`: a file's or random ones, and the result's file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import torch

from flashsmith.configs import DType
from flashsmith.configs.families import SUPPORTED_D_HEADS
from flashsmith.lab.files import write_whole
from flashsmith.problem import Problem

_DTYPES = {dtype.to_torch_dtype(): dtype for dtype in DType}


class Inputs(NamedTuple):
    """q (batch, seq_len_q, n_heads, d_head), k and v (batch, seq_len_k, n_heads_kv, d_head), of one
    dtype; neighbouring heads of q share one of theirs."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @property
    def problem(self) -> Problem:
        """Raises ValueError if q and k do not fit each other."""
        return Problem.of_shapes(_DTYPES[self.q.dtype], self.q.shape, self.k.shape)

    def to(self, device: str) -> Inputs:
        return Inputs(*(tensor.to(device) for tensor in self))


def random_inputs(problem: Problem, seed: int) -> Inputs:
    """Normally distributed q, k and v; the same on every machine for the same seed.

    Raises:
        ValueError: There is no memory for them.
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = problem.dtype.to_torch_dtype()
    shapes = (problem.q_shape, problem.k_shape, problem.k_shape)
    try:
        return Inputs(*(torch.randn(shape, generator=generator).to(dtype) for shape in shapes))
    except (RuntimeError, MemoryError):  # torch's allocator has no type of its own
        gigabytes = sum(map(math.prod, shapes)) * torch.float32.itemsize / 1e9
        raise ValueError(
            f"random tensors of {problem} take {gigabytes:.0f} GB, for which there is no memory; "
            "choose a smaller --seq-len, --batch or --heads"
        ) from None


def load_inputs(path: Path) -> Inputs:
    """q, k and v of a safetensors file; other tensors in it are ignored.

    Raises:
        ValueError, TypeError: There is no such file, it is none of safetensors, a tensor is
            missing, or one is not as the kernels take it; names it.
    """
    import safetensors

    if path.is_dir():
        raise ValueError(f"--input {path} is a folder; expected a safetensors file")
    if not path.is_file():
        raise ValueError(f"--input {path}: there is no such file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if missing := [name for name in "qkv" if name not in names]:
                raise ValueError(
                    f"--input {path} has no tensor {', '.join(missing)}; it has "
                    f"{', '.join(names) or 'none'}, and q, k and v are needed"
                )
            # The file aligns tensors to 8 bytes and kernels need 16: a copy has them.
            inputs = Inputs(*(file.get_tensor(name).clone() for name in "qkv"))
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(
            f"--input {path} cannot be read as safetensors: {error}; of another format, like "
            "torch.save's, safetensors.torch.save_file(dict(q=q, k=k, v=v), path) makes one"
        ) from None
    _check(path, inputs)
    return inputs


def _check(path: Path, inputs: Inputs) -> None:
    q = inputs.q
    for name, tensor in zip(Inputs._fields, inputs, strict=True):
        where = f"--input {path}: {name}"
        if tensor.dtype not in _DTYPES:
            raise TypeError(f"{where} has dtype {tensor.dtype}; supported are float16 and bfloat16")
        if tensor.ndim != 4 or 0 in tensor.shape:
            raise ValueError(
                f"{where} has shape {tuple(tensor.shape)}; expected (batch, seq_len, n_heads, "
                "d_head), none of them 0"
            )
        if tensor.dtype != q.dtype:
            raise ValueError(f"{where} is {tensor.dtype}, but q is {q.dtype}")
    if (d_head := _problem(path, inputs).d_head) not in SUPPORTED_D_HEADS:
        supported = ", ".join(map(str, SUPPORTED_D_HEADS))
        raise ValueError(f"--input {path}: q has d_head {d_head}; supported are {supported}")


def _problem(path: Path, inputs: Inputs) -> Problem:
    try:
        problem = inputs.problem
    except ValueError as error:
        raise ValueError(f"--input {path}: {error}") from None
    if inputs.v.shape != inputs.k.shape:
        k, v = tuple(inputs.k.shape), tuple(inputs.v.shape)
        raise ValueError(f"--input {path}: v has shape {v}, but k {k}; they must be equal")
    return problem


def save_output(path: Path, o: torch.Tensor) -> None:
    """Writes o, (batch, seq_len, n_heads, d_head), as tensor `o`; the file appears whole."""
    from safetensors.torch import save_file

    tensors = {"o": o.cpu().contiguous()}
    write_whole(path, lambda staged: save_file(tensors, staged))
