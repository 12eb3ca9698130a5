"""The banks of shared memory that one phase of ldmatrix reads, with and without the swizzle."""

from __future__ import annotations

from dataclasses import dataclass

BANKS = 32
BANK_BYTES = 4
PHASE_ROWS = 8  # ldmatrix reads one 8x8 matrix a phase, a 16-byte chunk of each of eight rows
CHUNK_BYTES = 16
_LINE_BYTES = BANKS * BANK_BYTES


@dataclass(frozen=True)
class BankMap:
    """One phase: ``wavefronts[row][bank]`` is the wavefront, from 0, that reads this bank of this
    row; None where nothing is read."""

    swizzled: bool
    rows: tuple[tuple[int | None, ...], ...]

    @property
    def wavefronts(self) -> int:
        return 1 + max(cell for row in self.rows for cell in row if cell is not None)


def bank_map(row_bytes: int, *, swizzled: bool, chunk: int = 0) -> BankMap:
    """Returns the phase that reads 16-byte chunk ``chunk`` of rows 0 to 7 of a tile.

    A bank gives one word a wavefront: rows that want different words of a bank queue up. The
    swizzle permutes the chunks of a row by the number of the 128-byte line that the row begins in.
    """
    rows_per_line = max(1, _LINE_BYTES // row_bytes)
    permuted = min(PHASE_ROWS, row_bytes // CHUNK_BYTES)  # chunks that the swizzle permutes
    in_line: dict[int, int] = {}
    rows = []
    for row in range(PHASE_ROWS):
        column = chunk ^ (row // rows_per_line % permuted) if swizzled else chunk
        first = (row * row_bytes + column * CHUNK_BYTES) // BANK_BYTES
        words = range(first, first + CHUNK_BYTES // BANK_BYTES)
        cells: list[int | None] = [None] * BANKS
        for word in words:
            bank = word % BANKS
            cells[bank] = in_line.get(bank, 0)
            in_line[bank] = in_line.get(bank, 0) + 1
        rows.append(tuple(cells))
    return BankMap(swizzled, tuple(rows))
