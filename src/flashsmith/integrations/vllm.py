"""flashsmith as an attention backend of vLLM.

Where both are installed, vLLM calls ``register`` when it starts. Who asks for the backend gets it:

    vllm serve model --attention-backend CUSTOM
"""

from __future__ import annotations

import logging

logger = logging.getLogger("flashsmith")

BACKEND = "flashsmith.integrations.vllm_attention.FlashsmithBackend"


def register() -> None:
    """Has vLLM know ``BACKEND`` as its backend CUSTOM, and loads nothing of it.

    vLLM calls this in each of its processes, and a plug-in that raises would end it, whether it is
    asked for or not. So a vLLM without such backends, one whose caches have another shape than
    0.33's, and one whose CUSTOM is another plug-in's are left as they are, with a warning.
    """
    try:
        import vllm.v1.kv_cache_layout  # noqa: F401  not where K and V are other tensors or axes
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        custom = AttentionBackendEnum.CUSTOM
        other = custom.get_path() if custom.is_overridden() else BACKEND
        if other == BACKEND:
            register_backend(custom, BACKEND)
    except Exception as error:  # of whatever an odd vLLM, or what it imports, raises
        logger.warning(
            "this vLLM does not take flashsmith as a backend: %s: %s", type(error).__name__, error
        )
        return
    if other != BACKEND:
        logger.warning("vLLM's backend CUSTOM is %s already; flashsmith leaves it so", other)
