"""FlashAttention 2.8.4's functions, computed by flashsmith's kernels.

    from flashsmith.flash_attn import flash_attn_func    # instead of: from flash_attn import ...

Signatures, layouts, results and gradients are FlashAttention's. A program that imports
``flash_attn`` itself runs unchanged after ``flashsmith.install_as_flash_attn()``, or as

    python -m flashsmith.flash_attn program.py arguments
"""

from flashsmith.errors import explaining_missing

with explaining_missing():
    from flashsmith.flash_attn.flash_attn_interface import (
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
        flash_attn_with_kvcache,
    )

# This is FlashAttention's version, because programs check it.
__version__ = "2.8.4"

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
