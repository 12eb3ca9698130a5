"""flashsmith as an attention backend of vLLM.

If both are installed, vLLM calls ``register`` when it starts. The backend is then selected by name:

    vllm serve model --attention-backend CUSTOM
"""

from __future__ import annotations

import logging

logger = logging.getLogger("flashsmith")

BACKEND = "flashsmith.integrations.vllm_attention.FlashsmithBackend"


def register() -> None:
    """Registers ``BACKEND`` as vLLM's backend CUSTOM, without loading it.

    vLLM calls this in each of its processes, and a plug-in that raises would end the process, even
    if the backend is not used. So three cases only warn: a vLLM without such backends, a vLLM whose
    caches differ from version 0.33's, and another plug-in's CUSTOM backend.
    """
    try:
        import vllm.v1.kv_cache_layout  # noqa: F401 absent where K and V are other tensors or axes
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        custom = AttentionBackendEnum.CUSTOM
        other = custom.get_path() if custom.is_overridden() else BACKEND
        if other == BACKEND:
            register_backend(custom, BACKEND)
    except Exception as error:  # any error of an unexpected vLLM or of its imports
        logger.warning(
            "this vLLM does not take flashsmith as a backend: %s: %s", type(error).__name__, error
        )
        return
    if other != BACKEND:
        logger.warning("vLLM's backend CUSTOM is %s already; flashsmith leaves it so", other)
