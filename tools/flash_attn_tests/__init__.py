"""FlashAttention-2's own tests, run through flashsmith's functions.

    python -m tools.flash_attn_tests test_flash_attn.py --cases 300 --kernels 120 --jobs 14

The file is FlashAttention's tests/test_flash_attn.py, which is fetched for a run and is no part of
this project. Its tests run as they stand, but for this:

- ``flash_attn`` is flashsmith's (``flashsmith.install_as_flash_attn``). A name that it lacks raises
  where a test uses it.
- Of a test's cases a random sample runs, with no more different kernels in all than asked for.
  Those are built first, with all processors.
- Weights that a function returns are normalised, unlike those of FlashAttention's kernels, which a
  helper of the file normalises: it gives them back as they are.
- Without a GPU the tests are told that the device is the CPU, and the emulator computes.

    rewrite.py   a file's tests for flashsmith
    absent.py    what stands for a name that flashsmith's flash_attn lacks
    cases.py     the cases of a test, and those that may run
    sample.py    which of them run
    kernels.py   which kernel a case needs
    results.py   the table of results, one row a test

docs/integrations.md explains how to run it.
"""
