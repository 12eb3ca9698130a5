"""The functions users call, on torch tensors: check, choose a configuration, launch."""
