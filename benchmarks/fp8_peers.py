"""Other implementations of the forward of 8 bits, for benchmarks/fp8_forward.py."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from flashsmith.errors import DeviceError
from flashsmith.lab.bench import fa3

Run = Callable[[], torch.Tensor]
Tensors = Mapping[str, torch.Tensor]

_MOST = torch.finfo(torch.float8_e4m3fn).max
_WEIGHT_SCALE = 256.0  # what cuDNN's weights, which are up to 1, are multiplied with


class Peer(NamedTuple):
    """A function that computes o, and what o is to be multiplied with where it has 8 bits."""

    run: Run
    o_scale: float = 1.0


def make_fa3(tensors: Tensors, scales: Tensors, causal: bool) -> Peer:
    """FlashAttention-3's operator; sequences are packed where its build takes no others.

    tensors: q, k and v, (batch, seq_len, n_heads, d_head) of float8_e4m3fn, equal in shape.
    scales: A number for each, (1,) float32.

    Raises:
        DeviceError: It is not here.
    """
    if missing := fa3.why_missing():
        raise DeviceError(missing)
    forward = fa3.load_operators().fwd
    batch, seq_len, n_heads, d_head = tensors["q"].shape
    device = tensors["q"].device
    given: dict[str, Any] = {
        f"{name}_descale": scale.expand(batch, n_heads).contiguous()
        for name, scale in scales.items()
    }
    given |= {"softmax_scale": d_head**-0.5, "is_causal": causal}
    dense = [tensors[name] for name in "qkv"]
    try:
        forward(*dense, **given)
        torch.cuda.synchronize()
        return Peer(lambda: forward(*dense, **given)[0])
    except RuntimeError as error:
        if "varlen" not in str(error):
            raise
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * seq_len
    given |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    given |= {"max_seqlen_q": seq_len, "max_seqlen_k": seq_len}
    packed = [t.flatten(0, 1) for t in dense]
    return Peer(lambda: forward(*packed, **given)[0].view(batch, seq_len, n_heads, d_head))


def make_cudnn(tensors: Tensors, scales: Tensors, causal: bool) -> Peer:
    """cuDNN's kernel, by a graph of its Python frontend. On Hopper its o has 8 bits, too, with a
    scale that a first run finds.

    tensors, scales: As above.

    Raises:
        DeviceError: The package nvidia-cudnn-frontend is not here.
    """
    if importlib.util.find_spec("cudnn") is None:
        raise DeviceError("the package nvidia-cudnn-frontend is not installed")
    cudnn: Any = importlib.import_module("cudnn")
    e4m3, fp32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(
        io_data_type=e4m3, intermediate_data_type=fp32, compute_data_type=fp32, handle=handle
    )
    o = torch.empty_like(tensors["q"])
    heads_first = {name: t.transpose(1, 2) for name, t in {**tensors, "o": o}.items()}
    one = torch.ones(1, 1, 1, 1, device=o.device)
    numbers = {f"descale_{name}": scale.reshape(1, 1, 1, 1) for name, scale in scales.items()}
    numbers |= {"descale_s": one / _WEIGHT_SCALE, "scale_s": one * _WEIGHT_SCALE}
    numbers["scale_o"] = one.clone()
    amax = {"amax_s": one.clone(), "amax_o": one.clone()}
    inputs = {
        name: graph.tensor(
            name=name, dim=list(t.shape), stride=list(t.stride()),
            data_type=e4m3 if name in tensors else fp32,
        )
        for name, t in {**{name: heads_first[name] for name in "qkv"}, **numbers}.items()
    }  # fmt: skip
    outputs = dict(
        zip(
            ("o", "stats", "amax_s", "amax_o"),
            graph.sdpa_fp8(
                **inputs, attn_scale=o.shape[-1] ** -0.5, use_causal_mask=causal,
                generate_stats=False, name="sdpa_fp8",
            ),
            strict=True,
        )
    )  # fmt: skip
    results = {"o": heads_first["o"], **amax}
    for name, t in results.items():
        outputs[name].set_output(True).set_dim(list(t.shape)).set_stride(list(t.stride()))
        outputs[name].set_data_type(e4m3 if name == "o" else fp32)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device=o.device)
    given = {
        **{inputs[name]: heads_first[name] for name in "qkv"},
        **{inputs[name]: number for name, number in numbers.items()},
        **{outputs[name]: t for name, t in results.items()},
    }

    def run() -> torch.Tensor:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(given, workspace, handle=handle)
        return o

    run()
    numbers["scale_o"].copy_(_MOST / amax["amax_o"])
    return Peer(run, float(amax["amax_o"]) / _MOST)


PEERS: dict[str, Callable[[Tensors, Tensors, bool], Peer]] = {
    "FlashAttention-3": make_fa3,
    "cuDNN": make_cudnn,
}
