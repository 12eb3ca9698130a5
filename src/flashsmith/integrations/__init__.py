"""The functions of other libraries, computed by ``flashsmith.attention``.

- ``sdpa``: torch's scaled_dot_product_attention, as a function and as torch's flash backend
- ``flex``: torch's flex_attention
- ``transformers``: an attention implementation of Hugging Face's models
- ``vllm``: an attention backend of vLLM, which vLLM registers itself

FlashAttention's own functions are ``flashsmith.flash_attn``.
"""

from importlib.util import find_spec

from flashsmith.errors import explaining_missing

# Every module here needs torch. The check only looks for torch and does not import it: `vllm` is
# the plug-in that vLLM loads in each of its processes, and processes that do not compute start
# without torch.
if find_spec("torch") is None:
    with explaining_missing():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
