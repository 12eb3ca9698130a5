"""Mutation testing: small faults, one at a time, that the tests have to notice.

    python -m tools.mutants --count 200 --seed 1 --jobs 4 --out build/mutants.csv

A *mutant* is a copy of the project with one small change: a bound moved by one, a term left out, a
check never taken. If the tests fail with it, it is *killed*; if they pass, it *survived*, and
either a test is missing or the change has no effect (an *equivalent* mutant, see equivalent.csv).

    mutant.py             what a mutant is
    cxx_text.py           which characters of a C++ file the emulator build compiles, and are code
    cxx_operators.py      our own operators, for the C++ files
    python_operators.py   cosmic-ray's operators, for the Python files
    areas.py              the parts of the project: their files, share of a sample, and tests
    sample.py             which mutants a seed and a count choose
    compiler.py           a compiler that keeps objects, so that a mutant compiles what it changed
    sandbox.py            a copy of the project in which one mutant meets its tests
    schedule.py           several sandboxes at a time, until the time is over
    results.py            the table of results, which a later run resumes, and its summary

docs/mutants.md explains how to run it and what survived.
"""
