"""Makes listings of machine code for tests, as cuobjdump prints them."""

from __future__ import annotations

from support.paths import DATA

DATA = DATA / "machine_code"
_NO_SCOREBOARD = 7


def excerpt(arch: str) -> str:
    """Returns nvcc's machine code of data/machine_code/release.cu."""
    return (DATA / f"release.{arch}.sass").read_text()


def encoding(holds: int | None = None, waits: tuple[int, ...] = ()) -> str:
    """Returns the second word of an instruction that only holds and awaits scoreboards."""
    mask = sum(1 << board for board in waits)
    board = _NO_SCOREBOARD if holds is None else holds
    control = 1 | board << 5 | _NO_SCOREBOARD << 8 | mask << 11
    return f"0x{control << 41:016x}"


def listing(program: str, arch: str = "sm_90a", function: str = "kernel") -> str:
    """Returns the listing of a function, from one instruction a line, 16 bytes each.

    ``-> 2`` at the end of a line holds the scoreboard 2 until the result is there; ``<- 0,1`` waits
    for the scoreboards 0 and 1. A line may have both, in this order. ``NAME:`` before an
    instruction names its address; ``{NAME}`` is replaced by it.
    """
    lines = [line.strip() for line in program.strip().splitlines()]
    names, bodies = {}, []
    for number, line in enumerate(lines):
        label, colon, rest = line.partition(": ")
        if colon:
            names[label] = f"0x{16 * number:x}"
        bodies.append(rest if colon else line)
    text = f"\tcode for {arch}\n\t\tFunction : {function}\n"
    for number, line in enumerate(bodies):
        body, _, waits = line.partition("<-")
        body, _, holds = body.partition("->")
        high = encoding(
            int(holds) if holds.strip() else None,
            tuple(int(board) for board in waits.split(",") if board.strip()),
        )
        for name, address in names.items():
            body = body.replace(f"{{{name}}}", address)
        text += f"        /*{16 * number:04x}*/     {body.strip()} ;   /* 0x{0:016x} */\n"
        text += f"                          /* {high} */\n"
    return text
