"""The laboratory: all that measures, checks at length, tunes and explains kernels.

The command line alone imports it: no call of a user needs it.
"""
