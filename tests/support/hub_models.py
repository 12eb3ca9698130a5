"""Runs models of transformers with a kernel of the Hugging Face Hub from a folder::

python -m support.hub_models FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from support.models import IDS, PADDING, assert_as_eager, tiny_model

# gpt_oss takes no kernel of its own choice whose name has "flash" in it.
REPOSITORY = "nobody/attention"


def main(folder: str) -> None:
    os.environ["LOCAL_KERNELS"] = f"{REPOSITORY}={folder}"
    from transformers.integrations import hub_kernels
    from transformers.utils import is_kernels_available

    if not is_kernels_available():  # transformers asks for another version of `kernels`
        from kernels import get_local_kernel

        hub_kernels.is_kernels_available = lambda: True
        hub_kernels.get_kernel = lambda *_, **__: get_local_kernel(Path(folder))
    with torch.no_grad():
        llama = tiny_model("llama")
        for mask in PADDING.values():
            assert_as_eager(llama, REPOSITORY, mask, input_ids=IDS, attention_mask=mask)
        assert_as_eager(tiny_model("gpt_oss"), REPOSITORY, input_ids=IDS)
    print("as eager")


if __name__ == "__main__":
    main(sys.argv[1])
