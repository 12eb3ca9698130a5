"""Peers: they are found, loaded, and called with their own signatures."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from flashsmith import reference, settings
from flashsmith.errors import DeviceError
from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.peers import PEERS, find_peers, first_available
from flashsmith.lab.bench.qkv import make_qkv
from support.bench import SMALL


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (settings.FA3_LIBRARY, settings.FA3_CUDART):
        monkeypatch.delenv(setting.name, raising=False)


@pytest.mark.parametrize("causal", [False, True])
def test_fa2_is_right_on_a_cpu_too(causal: bool) -> None:
    q, k, v = make_qkv(SMALL.problem, "cpu")
    o = PEERS["fa2"].make(q, k, v, causal)()
    exact = reference.reference_attention(q, k, v, causal=causal)
    low = reference.reference_attention(q, k, v, causal=causal, compute=q.dtype)
    assert o.shape == q.shape
    assert reference.compare(o, exact, low).ok


def test_missing_peers_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reasons = {name: peer.why_missing() for name, peer in PEERS.items()}
    assert reasons["fa2"] == ""
    assert reasons["cudnn"] == reasons["flex"] == "torch finds no GPU"
    assert "none of flash_attn_3, xformers and vllm is installed" in reasons["fa3"]
    assert settings.FA3_LIBRARY.name in reasons["fa3"]
    assert "flash_attn.cute.interface is not installed" in reasons["fa4"]
    with pytest.raises(DeviceError, match=r"no fa3 or fa4 here .fa3: .*; fa4: "):
        first_available("fa3", "fa4")
    assert first_available("fa3", "fa2").name == "fa2"


def test_cudnn_needs_a_gpu_and_a_torch_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    assert PEERS["cudnn"].is_available
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    assert PEERS["cudnn"].why_missing() == "this torch has no cuDNN"


@pytest.mark.parametrize("setting", [settings.FA3_LIBRARY, settings.FA3_CUDART])
def test_a_missing_file_is_named(setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting.name, "/nowhere/lib.so")
    assert PEERS["fa3"].why_missing() == f"there is no file {setting.name}=/nowhere/lib.so"


def test_unknown_peer_is_named() -> None:
    with pytest.raises(ValueError, match="peer 'fa5' is not known; supported: fa2, cudnn, fa3"):
        find_peers(["fa2", "fa5"])


@pytest.mark.parametrize("result", ["(q, None)", "q"])
def test_fa4_is_called_as_it_is(
    result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FA4 returns a tensor or a tuple that begins with one, depending on its version."""
    path = tmp_path / "flash_attn" / "cute" / "interface.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"def flash_attn_func(q, k, v, *, causal):\n    return {result} if causal else v\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))  # restores sys.modules at the end
    q, k, v = make_qkv(SMALL.problem, "cpu")
    assert PEERS["fa4"].make(q, k, v, True)() is q
    assert PEERS["fa4"].make(q, k, v, False)() is v
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert PEERS["fa4"].is_available
    assert PEERS["fa4"].build() == "flash-attn-4, version not recorded"


def test_each_peer_says_which_build_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    assert PEERS["fa2"].build() == PEERS["flex"].build() == f"torch {torch.__version__}"
    assert PEERS["cudnn"].build() == "cuDNN 91900"


# ---- FlashAttention-3: a library that registers operators, with upstream's schema ----

_SCHEMA = """fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None,
    Tensor(v_new!)? v_new=None, Tensor? q_v=None, Tensor(out!)? out=None,
    Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None,
    Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None,
    int? max_seqlen_k=None, Tensor? page_table=None, Tensor? kv_batch_idx=None,
    Tensor? leftpad_k=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None,
    Tensor? seqlens_rotary=None, Tensor? q_descale=None, Tensor? k_descale=None,
    Tensor? v_descale=None, float? softmax_scale=None, bool is_causal=False,
    int window_size_left=-1, int window_size_right=-1, int attention_chunk=0, float softcap=0.,
    bool is_rotary_interleaved=False, Tensor? scheduler_metadata=None, int num_splits=0,
    bool? pack_gqa=None, int sm_margin=0) -> (Tensor(out!), Tensor, Tensor, Tensor)"""
_SCHEMA_OF_VLLM = """fwd(Tensor q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v,
    Tensor? cu_seqlens_q, Tensor? seqused_k, int? max_seqlen_q, Tensor? page_table,
    float softmax_scale, bool is_causal, int window_size_left, int window_size_right, float softcap,
    bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa,
    int sm_margin, int cp_world_size, int cp_rank) -> Tensor[]"""
_CONTENT = b"not quite a library"


class FakeLibraries:
    """Replaces the loaders of libraries: loading FA3's file registers an operator for CPU
    tensors."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, str]] = []
        self.scales: list[float | None] = []
        self._library: torch.library.Library | None = None

    def load_runtime(self, path: str, mode: int) -> None:
        assert mode == ctypes.RTLD_GLOBAL  # otherwise FA3's library does not see its symbols
        self.loaded.append(("runtime", path))

    def load_operators(self, path: str) -> None:
        self.loaded.append(("operators", path))
        if Path(path).read_bytes() == _CONTENT:
            self.register()

    def register(self, namespace: str = "flash_attn_3", schema: str = _SCHEMA) -> None:
        self._library = torch.library.Library(namespace, "DEF")
        self._library.define(schema)
        operators = getattr(torch.ops, namespace)
        self._library.impl("fwd", partial(self._forward, operators), "CPU")

    def _forward(self, operators: Any, *values: Any) -> tuple[Any, ...]:
        """torch passes values by position and omits trailing defaults."""
        names = [argument.name for argument in operators.fwd.default._schema.arguments]
        given = dict(zip(names, values, strict=False))
        self.scales.append(given["softmax_scale"])
        q, k, v = (given[name] for name in "qkv")
        o = PEERS["fa2"].make(q, k, v, given.get("is_causal", False))().contiguous()
        return o, o.new_empty(0), o.new_empty(0), o.new_empty(0)

    def forget(self) -> None:
        if self._library is not None:
            self._library._destroy()


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLibraries]:
    fake = FakeLibraries()
    monkeypatch.setattr(torch.ops, "load_library", fake.load_operators)
    monkeypatch.setattr(fa3.ctypes, "CDLL", fake.load_runtime)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(fa3, "_loaded", set())
    yield fake
    fake.forget()


def fa3_file(folder: Path, content: bytes = _CONTENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "_C.so"
    path.write_bytes(content)
    return path


def assert_calls_its_operator(libraries: FakeLibraries) -> None:
    q, k, v = make_qkv(SMALL.problem, "cpu")
    full, causal = (PEERS["fa3"].make(q, k, v, causal)() for causal in (False, True))
    assert torch.equal(full, PEERS["fa2"].make(q, k, v, False)())
    assert torch.equal(causal, PEERS["fa2"].make(q, k, v, True)())
    assert libraries.scales == [64**-0.5] * 2


def test_fa3_is_the_library_that_is_named(
    libraries: FakeLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, runtime = fa3_file(tmp_path / "fa3"), tmp_path / "libcudart.so.12"
    runtime.touch()
    monkeypatch.setenv(settings.FA3_LIBRARY.name, str(library))
    monkeypatch.setenv(settings.FA3_CUDART.name, str(runtime))
    assert PEERS["fa3"].is_available
    build = f"fa3/_C.so sha256 {hashlib.sha256(_CONTENT).hexdigest()[:16]}"
    assert PEERS["fa3"].build() == build  # the stamp needs it before the library is loaded
    assert libraries.loaded == []
    assert_calls_its_operator(libraries)
    assert libraries.loaded == [("runtime", str(runtime)), ("operators", str(library))]
    assert PEERS["fa3"].build() == build


@pytest.mark.parametrize("package", ["flash_attn_3", "xformers/flash_attn_3"])
def test_fa3_is_the_package_that_is_installed(
    package: str, libraries: FakeLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = fa3_file(tmp_path / package)
    for folder in (library.parent, library.parent.parent):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    assert PEERS["fa3"].is_available
    assert PEERS["fa3"].build().startswith("flash_attn_3/_C.so sha256 ")
    assert_calls_its_operator(libraries)
    assert libraries.loaded == [("operators", str(library))]


def test_fa3_that_is_registered_already_is_used_and_said_so(
    libraries: FakeLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another package has registered the operator, the named file would not be measured."""
    libraries.register()
    monkeypatch.setenv(settings.FA3_LIBRARY.name, str(fa3_file(tmp_path)))
    assert PEERS["fa3"].build() == "registered by something else in this process"
    assert_calls_its_operator(libraries)
    assert libraries.loaded == []


def test_vllms_build_is_called_as_upstreams(libraries: FakeLibraries) -> None:
    """vLLM's schema has no defaults, so every argument must be passed."""
    libraries.register("_vllm_fa3_C", _SCHEMA_OF_VLLM)
    assert PEERS["fa3"].is_available
    assert_calls_its_operator(libraries)


def test_a_library_without_the_operator_is_refused(
    libraries: FakeLibraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fa3_file(tmp_path, b"something else")
    monkeypatch.setenv(settings.FA3_LIBRARY.name, str(path))
    with pytest.raises(DeviceError, match=rf"{path} registers no operator"):
        PEERS["fa3"].make(*make_qkv(SMALL.problem, "cpu"), False)
