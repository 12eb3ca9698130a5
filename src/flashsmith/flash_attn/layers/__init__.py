"""Mirrors ``flash_attn.layers``, of which flashsmith has the rotary embedding alone."""
