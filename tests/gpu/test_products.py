"""The machine code of kernels that multiply by wgmma: what products wait for."""

from __future__ import annotations

import pytest
import torch

from flashsmith.configs import CAUSAL, DecodeKernelConfig, KernelId
from flashsmith.jit import Target, build_kernels
from flashsmith.jit.control_flow import find_blocks
from flashsmith.jit.disassembler import disassemble
from flashsmith.jit.machine_code import Function, parse_machine_code
from support.decoding import WGMMA

pytestmark = pytest.mark.gpu

ARCH = "sm_90a"
# Products outside of the loop over keys may wait.
MAX_WAITING = 4


def waiting_products(function: Function) -> int:
    """Returns the products that wait for a descriptor from vector registers: those of a basic
    block with a move to a uniform register between them and the product before them."""
    waiting = 0
    for block in find_blocks(function.instructions):
        follows_product = moves = False
        for index in block.indices:
            base = function.instructions[index].base
            if base == "HGMMA":
                waiting += follows_product and moves
                follows_product, moves = True, False
            moves |= base == "R2UR"
    return waiting


@pytest.mark.parametrize("config", WGMMA, ids=str)
def test_products_of_decode_take_descriptors_from_uniform_registers(
    config: DecodeKernelConfig,
) -> None:
    """Half of the products waited where ptxas did not know the stages of K and V to be uniform, and
    the loop over keys took a tenth longer."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("kernels that multiply by wgmma run on compute capability 9.0 alone")
    (module,) = build_kernels([KernelId(config, CAUSAL)], Target.cuda(ARCH))
    functions = parse_machine_code(disassemble(module.path, ARCH))
    kernels = [each for each in functions if any(i.base == "HGMMA" for i in each.instructions)]
    assert len(kernels) == 3, "by their schedules"
    assert {
        each.name: waiting_products(each)
        for each in kernels
        if waiting_products(each) > MAX_WAITING
    } == {}
