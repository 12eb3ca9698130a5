"""Every model class of transformers with flashsmith's attention, beside the same with eager."""
