"""Soaks kernels: many problems at tile boundaries and at random, with many reruns.

A kernel enters a table of tuned configurations only if it passed. `flashsmith soak` runs it.
"""

from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.check import RERUNS, Verdict, check, takes
from flashsmith.lab.soak.draw import EMULATOR, Extent, gpu_extent, random_case, tile_boundary_cases
from flashsmith.lab.soak.gradients import PreparedGradients, prepare_gradients
from flashsmith.lab.soak.kernels import soaked_kernels, table_configs, that_run_on
from flashsmith.lab.soak.launches import Prepared, make_launch, prepare_for
from flashsmith.lab.soak.load import CardLoad
from flashsmith.lab.soak.log import reproduce, write_csv
from flashsmith.lab.soak.meaning import Meaning, Varlen
from flashsmith.lab.soak.prepared import PreparedCase, Truth, prepare, truth_of
from flashsmith.lab.soak.session import SoakPlan, Tally, soak
from flashsmith.lab.soak.values import Values

__all__ = [
    "EMULATOR",
    "RERUNS",
    "CardLoad",
    "Extent",
    "Meaning",
    "Prepared",
    "PreparedCase",
    "PreparedGradients",
    "SoakCase",
    "SoakPlan",
    "Tally",
    "Truth",
    "Values",
    "Varlen",
    "Verdict",
    "check",
    "gpu_extent",
    "make_launch",
    "prepare",
    "prepare_for",
    "prepare_gradients",
    "random_case",
    "reproduce",
    "soak",
    "soaked_kernels",
    "table_configs",
    "takes",
    "that_run_on",
    "tile_boundary_cases",
    "truth_of",
    "write_csv",
]
