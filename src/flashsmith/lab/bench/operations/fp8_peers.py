"""Other implementations of the FP8 forward."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.operations.base import OperationPeer, Run
from flashsmith.lab.bench.operations.fp8_inputs import Fp8Inputs
from flashsmith.lab.bench.peers import PEERS

_MAX = torch.finfo(torch.float8_e4m3fn).max
_WEIGHT_SCALE = 256.0  # the factor on cuDNN's weights, which are at most 1


def _fa3(given: Fp8Inputs) -> Run:
    """Returns a run of FlashAttention-3's operator; sequences are packed if its build needs it."""
    forward = fa3.load_operators().fwd
    dense = [given.small[name] for name in "qkv"]
    batch, seq_len, n_heads, d_head = dense[0].shape
    keywords: dict[str, Any] = {
        f"{name}_descale": scale.expand(batch, n_heads).contiguous()
        for name, scale in given.scales.items()
    }
    keywords |= {"softmax_scale": d_head**-0.5, "is_causal": given.causal}
    try:
        forward(*dense, **keywords)
        torch.cuda.synchronize()
        return lambda: forward(*dense, **keywords)[0]
    except RuntimeError as error:
        if "varlen" not in str(error):
            raise
    starts = torch.arange(batch + 1, dtype=torch.int32, device=dense[0].device) * seq_len
    keywords |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
    keywords |= {"max_seqlen_q": seq_len, "max_seqlen_k": seq_len}
    packed = [t.flatten(0, 1) for t in dense]
    return lambda: forward(*packed, **keywords)[0].view(batch, seq_len, n_heads, d_head)


def _cudnn(given: Fp8Inputs) -> Run:
    """Returns a run of cuDNN's kernel, through a graph of its Python frontend.

    On Hopper o is in FP8, too. A first run finds the scale, and the results are o and the scale.
    """
    tensors, scales, causal = given.small, given.scales, given.causal
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
    pointers = {
        **{inputs[name]: heads_first[name] for name in "qkv"},
        **{inputs[name]: number for name, number in numbers.items()},
        **{outputs[name]: t for name, t in results.items()},
    }

    def run() -> torch.Tensor:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(pointers, workspace, handle=handle)
        return o

    run()
    numbers["scale_o"].copy_(_MAX / amax["amax_o"])
    o_scale = float(amax["amax_o"]) / _MAX
    return lambda: (run(), o_scale)


@dataclass(frozen=True)
class _Frontend:
    def why_missing(self) -> str:
        if importlib.util.find_spec("cudnn") is None:
            return "the package nvidia-cudnn-frontend is not installed"
        return PEERS["cudnn"].why_missing()

    def build(self) -> str:
        version = importlib.metadata.version("nvidia-cudnn-frontend")
        return f"{PEERS['cudnn'].build()}, nvidia-cudnn-frontend {version}"


FP8_PEERS = {
    "FlashAttention-3": OperationPeer(PEERS["fa3"], _fa3),
    "cuDNN": OperationPeer(_Frontend(), _cudnn),
}
