"""The laboratory measures, checks at length, tunes and explains kernels.

Only the command line imports it; no call of a user needs it.
"""
