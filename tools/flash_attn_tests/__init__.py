"""Runs FlashAttention-2's own tests through flashsmith's functions.

    python -m tools.flash_attn_tests test_flash_attn.py --cases 300 --kernels 120 --jobs 14

The file is FlashAttention's tests/test_flash_attn.py, which is fetched for a run and is not part of
this project. Its tests run unchanged, with these exceptions:

- ``flash_attn`` is flashsmith's (``flashsmith.install_as_flash_attn``). A name that it lacks raises
  where a test uses it.
- A random sample of each test's cases runs. Together they need no more than a maximum number of
  different kernels, which are built first, on all processors.
- FlashAttention's kernels return weights that a helper of the file normalises; flashsmith's are
  normalised already, so the helper returns them unchanged.
- Without a GPU, the tests see the CPU as the device, and the emulator computes.

    rewrite.py   rewrites the file's tests for flashsmith
    absent.py    replaces names that flashsmith's flash_attn lacks
    cases.py     lists the cases of a test, and the ones that may run
    sample.py    draws the cases that run
    kernels.py   finds the kernels that a case needs
    results.py   writes the table of results, one row a test

docs/integrations.md explains how to run it.
"""
