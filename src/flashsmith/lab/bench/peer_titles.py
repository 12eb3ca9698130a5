"""The peers' full names, for readers of results that run without torch."""

PEER_TITLES = {
    "fa2": "FlashAttention-2",
    "cudnn": "cuDNN",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "flex": "FlexAttention",
}
