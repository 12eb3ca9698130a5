"""Mirrors ``flash_attn.ops.triton``: the rotary embedding, which is plain torch here."""
