"""The texts of a kernel of the Hugging Face Hub: what its loader imports, and the model card."""

# The place of the package in a variant's folder.
PACKAGE_FOLDER = "_package"

# The loader imports this file under a name of its own, and the package by its name: operators of
# torch, errors of tvm-ffi and pickled objects have that name once a process.
ENTRY = '''\
"""flashsmith {version}: FlashAttention kernels for NVIDIA GPUs."""

import sys
from pathlib import Path

_PACKAGE = Path(__file__).absolute().parent / "{package_folder}"
_is_imported = "flashsmith" in sys.modules
if not _is_imported:
    sys.path.insert(0, str(_PACKAGE))

import flashsmith

if flashsmith.__version__ != "{version}":
    raise ImportError(
        f"flashsmith {{flashsmith.__version__}} is imported already, from {{flashsmith.__file__}}, "
        "and this kernel is flashsmith {version}; a process has one version: load this kernel "
        "first, or the kernel of that version"
    )

from flashsmith.flash_attn.hub import (
    attention,
    decode,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from flashsmith.jit.caches import add_prebuilt

if _is_imported:  # this version, from elsewhere, without these kernels
    add_prebuilt(_PACKAGE / "flashsmith" / "prebuilt")

__all__ = [
    "attention",
    "decode",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]
'''

CARD = """\
---
library_name: kernels
license: apache-2.0
tags:
- kernels
- attention
---

# flashsmith {version}

FlashAttention kernels for NVIDIA GPUs of compute capability 8.0 and newer, for the
[`kernels`](https://github.com/huggingface/kernels) package. Needs torch and apache-tvm-ffi
({variants}).

```python
from pathlib import Path

from kernels import get_kernel, get_local_kernel

flashsmith = get_kernel("<this repository>", version={hub_version}, trust_remote_code=True)
flashsmith = get_local_kernel(Path("<this folder>"))  # without the hub
out = flashsmith.flash_attn_func(q, k, v, causal=True)
```

In transformers:

```python
model = AutoModelForCausalLM.from_pretrained(
    name, attn_implementation="<this repository>", allow_all_kernels=True
)
```

With `LOCAL_KERNELS="<this repository>=<this folder>"` in the environment, both take the kernel from
the folder, whether or not there is such a repository.

## Functions

- `flash_attn_func`, `flash_attn_varlen_func` and `flash_attn_with_kvcache` compute what those of
  FlashAttention 2.8.4 do, and attention sinks by `sinks` or `s_aux`.
- `attention` computes the same with flashsmith's arguments, and masks, scores and biases.
- `decode` is for few queries over a KV cache, which may be paged or FP8.

A kernel that is not in this repository is compiled at its first use, if the machine has nvcc or
NVRTC, and ninja.
Queries, keys and values on a CPU are computed by an emulator, which is for tests.
"""
