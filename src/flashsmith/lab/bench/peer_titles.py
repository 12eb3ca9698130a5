"""The peers' names in full, which results are read with where there is no torch."""

PEER_TITLES = {
    "fa2": "FlashAttention-2",
    "cudnn": "cuDNN",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "flex": "FlexAttention",
}
