"""Mutation testing: makes small faults, one at a time, that the tests have to notice.

    python -m tools.mutants --count 200 --seed 1 --jobs 4 --out build/mutants.csv

A *mutant* is a copy of the project with one small change: a bound moved by one, a term left out, a
check never taken. If the tests fail with it, it is *killed*. If they pass, it *survived*: a test is
missing, or the change has no effect (an *equivalent* mutant, see equivalent.csv).

    mutant.py             defines a mutant
    cxx_text.py           masks the characters of a C++ file that are not code of the emulator build
    cxx_operators.py      has our own operators for C++
    python_operators.py   selects cosmic-ray's operators for Python
    areas.py              lists parts of the project: their files, share of a sample, and tests
    sample.py             chooses mutants by a seed and a count
    compiler.py           keeps objects, so that a mutant compiles only what it changed
    sandbox.py            copies the project, and runs the tests on one mutant
    schedule.py           runs several sandboxes at a time, until the time is over
    results.py            keeps the table of results, which a later run resumes, and sums it up

docs/mutants.md explains how to run it and lists the survivors.
"""
