"""FlashAttention's folder of this name: rotary embeddings alone, in plain torch."""
