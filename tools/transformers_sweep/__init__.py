"""Runs every model class of transformers with flashsmith's attention and with eager attention."""
