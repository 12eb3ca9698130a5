"""Makes the tensors of `flashsmith run`, random or from a file, and saves its result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import torch

from flashsmith.configs import DType
from flashsmith.configs.workload import padded_d_head
from flashsmith.lab.commands.files import write_whole
from flashsmith.ops.checks import FP8
from flashsmith.problem import Problem
from flashsmith.runtime.call_args import Scales

_DTYPES = {dtype.to_torch_dtype(): dtype for dtype in DType}


class Inputs(NamedTuple):
    """q (batch, seq_len_q, n_heads, d_head), k (batch, seq_len_k, n_heads_kv, d_head) and v (batch,
    seq_len_k, n_heads_kv, d_v); neighbouring heads of q share a KV head. All have one 16-bit
    dtype; or q and k are FP8 (e4m3), and v is FP8 or 16-bit."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @property
    def problem(self) -> Problem:
        """The problem's shapes. Raises ValueError if q and k do not fit each other."""
        dtype, d_v = _DTYPES[self.dtype_of_o], self.v.shape[-1]
        return Problem.of_shapes(dtype, self.q.shape, self.k.shape, d_v)

    @property
    def dtype_of_o(self) -> torch.dtype:
        """The dtype of ``attention``'s result: v's, or bfloat16 if v is FP8."""
        return torch.bfloat16 if self.v.dtype == FP8 else self.v.dtype

    def to(self, device: str) -> Inputs:
        return Inputs(*(tensor.to(device) for tensor in self))


def random_inputs(problem: Problem, seed: int) -> Inputs:
    """Returns normally distributed q, k and v, the same on every machine for the same seed.

    Raises:
        ValueError: There is not enough memory for them.
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = problem.dtype.to_torch_dtype()
    shapes = (problem.q_shape, problem.k_shape, problem.k_shape)
    try:
        return Inputs(*(torch.randn(shape, generator=generator).to(dtype) for shape in shapes))
    except (RuntimeError, MemoryError):  # torch's CPU allocator raises a plain RuntimeError
        gigabytes = sum(map(math.prod, shapes)) * torch.float32.itemsize / 1e9
        raise ValueError(
            f"random tensors of {problem} take {gigabytes:.0f} GB, for which there is no memory; "
            "choose a smaller --seq-len, --batch or --heads"
        ) from None


def load_inputs(path: Path) -> tuple[Inputs, Scales]:
    """Reads q, k and v of a safetensors file, and q_scale, k_scale and v_scale of FP8 tensors if
    the file has them; other tensors in it are ignored.

    Raises:
        ValueError, TypeError: The file does not exist or is not safetensors, or a tensor is missing
            or of a shape or dtype that the kernels do not take; the message names it.
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
            # The file aligns tensors to 8 bytes, but kernels need 16, which clone() gives.
            tensors = {name: file.get_tensor(name).clone() for name in "qkv"}
            scales = {name: file.get_tensor(name) for name in Scales._fields if name in names}
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(
            f"--input {path} cannot be read as safetensors: {error}; convert another format, like "
            "torch.save's, by safetensors.torch.save_file(dict(q=q, k=k, v=v), path)"
        ) from None
    inputs = Inputs(**tensors)
    _check(path, inputs)
    _check_scales(path, inputs, scales)
    return inputs, Scales(**scales)


def _check(path: Path, inputs: Inputs) -> None:
    q = inputs.q
    for name, tensor in zip(Inputs._fields, inputs, strict=True):
        where = f"--input {path}: {name}"
        if tensor.dtype not in (*_DTYPES, FP8):
            raise TypeError(
                f"{where} has dtype {tensor.dtype}; supported are float16, bfloat16 and "
                "float8_e4m3fn"
            )
        if tensor.ndim != 4 or 0 in tensor.shape:
            raise ValueError(
                f"{where} has shape {tuple(tensor.shape)}; expected (batch, seq_len, n_heads, "
                "d_head), none of them 0"
            )
        if tensor.dtype != q.dtype and not (name == "v" and q.dtype == FP8):
            raise ValueError(f"{where} is {tensor.dtype}, but q is {q.dtype}")
    try:
        padded_d_head(inputs.problem)
    except ValueError as error:
        raise ValueError(f"--input {path}: {error}") from None
    if inputs.v.shape[:3] != inputs.k.shape[:3]:
        k, v = tuple(inputs.k.shape), tuple(inputs.v.shape)
        raise ValueError(
            f"--input {path}: v has shape {v}, but k {k}; all but the last must be equal"
        )


def _check_scales(path: Path, inputs: Inputs, scales: dict[str, torch.Tensor]) -> None:
    batch, heads_kv = inputs.q.shape[0], inputs.k.shape[2]
    expected = (1,), (heads_kv,), (batch, heads_kv)
    for name, scale in scales.items():
        where, of = f"--input {path}: {name}", getattr(inputs, name[0])
        if of.dtype != FP8:
            raise ValueError(f"{where} is there, but {name[0]} has 16 bits; leave it out")
        if scale.dtype != torch.float32 or tuple(scale.shape) not in expected:
            raise ValueError(
                f"{where} has dtype {scale.dtype} and shape {tuple(scale.shape)}; expected float32 "
                f"and (1,), (n_heads_kv,) or (batch, n_heads_kv) = {expected[-1]}"
            )


def save_output(path: Path, o: torch.Tensor, lse: torch.Tensor | None = None) -> None:
    """Writes o, (batch, seq_len, n_heads, d_v), as tensor `o`, and the LSE, if any, as `lse`. The
    file appears whole."""
    from safetensors.torch import save_file

    tensors = {"o": o.cpu().contiguous()} | ({} if lse is None else {"lse": lse.cpu()})
    write_whole(path, lambda staged: save_file(tensors, staged))
