"""The tensors of `flashsmith run`: a file's or random ones, and the result's file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from flashsmith.cli.files import write_whole
from flashsmith.configs import DType
from flashsmith.configs.sm90.forward import SUPPORTED_D_HEADS

_DTYPES = {dtype.to_torch_dtype(): dtype for dtype in DType}


class Inputs(NamedTuple):
    """q (batch, seq_len_q, n_heads, d_head), k and v (batch, seq_len_k, n_heads_kv, d_head), of one
    dtype; neighbouring heads of q share one of theirs."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @property
    def dtype(self) -> DType:
        return _DTYPES[self.q.dtype]

    @property
    def d_head(self) -> int:
        return self.q.shape[3]

    @property
    def plain(self) -> bool:
        """Whether k and v are shaped as q."""
        return self.k.shape == self.q.shape

    def to(self, device: str) -> Inputs:
        return Inputs(*(tensor.to(device) for tensor in self))


def random_inputs(shape: tuple[int, int, int, int], dtype: DType, seed: int) -> Inputs:
    """Normally distributed q, k and v; the same on every machine for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return Inputs(
        *(torch.randn(shape, generator=generator).to(dtype.to_torch_dtype()) for _ in "qkv")
    )


def load_inputs(path: Path) -> Inputs:
    """q, k and v of a safetensors file; other tensors in it are ignored.

    Raises:
        ValueError, TypeError: There is no such file, it is none of safetensors, a tensor is
            missing, or one is not as the kernels take it; names it.
    """
    import safetensors

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
        raise ValueError(f"--input {path} cannot be read as safetensors: {error}") from None
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
    _check_shapes(path, inputs)
    if inputs.d_head not in SUPPORTED_D_HEADS:
        supported = ", ".join(map(str, SUPPORTED_D_HEADS))
        raise ValueError(f"--input {path}: q has d_head {inputs.d_head}; supported are {supported}")


def _check_shapes(path: Path, inputs: Inputs) -> None:
    q, k, v = (tuple(tensor.shape) for tensor in inputs)
    if (k[0], k[3]) != (q[0], q[3]) or q[2] % k[2] != 0:
        raise ValueError(
            f"--input {path}: k has shape {k}, but q {q}; batch and d_head must be equal, and the "
            "heads of q a multiple of those of k"
        )
    if v != k:
        raise ValueError(f"--input {path}: v has shape {v}, but k {k}; they must be equal")


def save_output(path: Path, o: torch.Tensor) -> None:
    """Writes o, (batch, seq_len, n_heads, d_head), as tensor `o`; the file appears whole."""
    from safetensors.torch import save_file

    tensors = {"o": o.cpu().contiguous()}
    write_whole(path, lambda staged: save_file(tensors, staged))
