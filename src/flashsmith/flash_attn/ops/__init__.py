"""Mirrors ``flash_attn.ops``, of which flashsmith has ``triton.rotary`` alone."""
