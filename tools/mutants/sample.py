"""Chooses mutants by a seed and a count, the same on every machine.

All areas have the same share. Within an area the operators take turns, so that a rare one is not
lost among the many places of a common one. Within an operator the order is by hashes of the seed
and the mutants' names, so that an edit removes from a sample only the mutants that it changes.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

from tools.mutants import cxx_operators
from tools.mutants.areas import AREAS, Area
from tools.mutants.mutant import Mutant, mutant_id
from tools.mutants.results import Result

# The mutants that compete for a place of the sample: the first one, then its substitutes.
Queue = list[Mutant]


def mutants_of(area: Area, root: Path) -> list[Mutant]:
    """Returns every mutant of an area, by file and position."""
    return list(chain.from_iterable(_mutants_in(area.name, p, root) for p in area.files(root)))


def sample(root: Path, count: int, seed: int, areas: Sequence[Area] | None = None) -> list[Queue]:
    """Returns ``count`` places of a sample, each with its mutant and substitutes if that does not
    compile.

    areas: None: the sampled ones. An area alone has the mutants of its share of any sample.
    """
    areas = [area for area in AREAS if area.is_sampled] if areas is None else areas
    places = []
    for area, quota in zip(areas, quotas(count, len(areas)), strict=True):
        order = _in_turns(mutants_of(area, root), f"{seed}:{area.name}")
        places += [order[place::quota] for place in range(min(quota, len(order)))]
    return places


def of_places(places: Sequence[Queue], results: Mapping[str, Result]) -> tuple[list[Result], int]:
    """Returns the results of a sample's places, and the number of places that have not run.

    A place is judged by its first mutant that compiles; the mutants before it are in the list, too.
    A substitute that ran for an earlier state of the sources is not.
    """
    found, missing = [], 0
    for queue in places:
        for mutant in queue:
            result = results.get(mutant.id)
            if result is None:
                missing += 1
                break
            found.append(result)
            if result.status != "not-compiled":
                break
    return found, missing


def quotas(count: int, areas: int) -> list[int]:
    """Returns integers that sum to ``count`` and differ by at most one."""
    return [count // areas + (place < count % areas) for place in range(areas)]


def _in_turns(mutants: list[Mutant], seed: str) -> list[Mutant]:
    by_operator: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(mutants, key=lambda mutant: _hash(seed, mutant.id)):
        by_operator[mutant.operator].append(mutant)
    names = sorted(by_operator, key=lambda name: _hash(seed, name))
    rounds = zip_longest(*(by_operator[name] for name in names))
    return [mutant for mutant in chain.from_iterable(rounds) if mutant is not None]


def _hash(seed: str, name: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{name}".encode()).digest()


def _mutants_in(area: str, path: Path, root: Path) -> list[Mutant]:
    text, file = path.read_text(), path.relative_to(root).as_posix()
    lines = text.split("\n")
    before: Counter[tuple[str, str]] = Counter()
    mutants = []

    def add(line: int, operator: str, mutate: partial[str]) -> None:
        code = lines[line - 1].strip()
        nth = before[operator, code]
        before[operator, code] += 1
        name = mutant_id(file, operator, code, nth)
        mutants.append(Mutant(area, file, line, operator, code, name, mutate))

    if path.suffix == ".py":
        from tools.mutants import python_operators  # cosmic-ray is an extra

        for place in python_operators.places(text):
            add(place.line, place.kind, partial(python_operators.mutate, place=place))
    else:
        for edit in cxx_operators.edits(text):
            line = text.count("\n", 0, edit.start) + 1
            add(line, edit.operator, partial(cxx_operators.apply, edit=edit))
    return mutants
