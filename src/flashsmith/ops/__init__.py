"""The functions users call, on torch tensors: check, choose a configuration, launch.

- ``attention``: the best kernel for a problem
- ``forward``: the kernel of a configuration
- ``operators``: ``attention`` as torch.compile and torch.export see it
"""
