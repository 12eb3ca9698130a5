"""The functions of other libraries, computed by ``flashsmith.attention``.

- ``sdpa``: torch's scaled_dot_product_attention, as a function and as torch's flash backend
- ``flex``: torch's flex_attention
- ``transformers``: an attention implementation of Hugging Face's models
- ``vllm``: an attention backend of vLLM, which vLLM registers itself

FlashAttention's own functions are ``flashsmith.flash_attn``.
"""

from flashsmith.errors import explaining_missing

with explaining_missing():
    import torch  # noqa: F401 - all modules here need it
