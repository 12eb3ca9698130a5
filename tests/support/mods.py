"""Compiles the policies of traced functions for the host, and runs them on rows of inputs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

from flashsmith.mods.buffers import arguments
from flashsmith.mods.cpp import GRADIENT_HEADER, HEADER, gradient, policy
from flashsmith.mods.trace import Mods
from support.emulator_program import CXX, FLAGS
from support.paths import CSRC

_PROGRAM = """\
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "{header}"
#include "{gradient_header}"

using namespace flashsmith;

// Outside of a launch nothing checks an address but the sanitizer.
void emulator::thread_load_global(void *registers, const void *global, int bytes) {{
  std::memcpy(registers, global, static_cast<size_t>(bytes));
}}

{policies}

static_assert(UserScoreGradient<0>::kIsOne);

template <typename T>
std::vector<T> read(FILE *file, size_t n) {{
  std::vector<T> values(n);
  if (std::fread(values.data(), sizeof(T), n, file) != n) std::abort();
  return values;
}}

template <typename Policy, typename Gradient>
void run(const char *inputs, const char *outputs) {{
  FILE *in = std::fopen(inputs, "rb"), *out = std::fopen(outputs, "wb");
  const auto counts = read<int32_t>(in, 2);  // of rows and of tensors
  const size_t rows = counts[0];
  ModBuffers buffers{{}};
  std::vector<std::vector<char>> memory;
  for (int k = 0; k < counts[1]; k++) {{
    const auto shape = read<int32_t>(in, 2 * kMaxModDimensions);
    std::memcpy(buffers.size[k], shape.data(), sizeof(buffers.size[k]));
    std::memcpy(buffers.stride[k], &shape[kMaxModDimensions], sizeof(buffers.stride[k]));
    memory.push_back(read<char>(in, read<int32_t>(in, 1)[0]));
    buffers.buffer[k] = memory.back().data();
  }}
  const auto score = read<float>(in, rows);
  const auto b = read<int32_t>(in, rows), h = read<int32_t>(in, rows);
  const auto q = read<int32_t>(in, rows), kv = read<int32_t>(in, rows);
  for (size_t i = 0; i < rows; i++) {{
    const int column = kv[i] < 16 ? 0 : i % 16;
    const Key key{{kv[i] - column, column}};
    const float changed = Policy::score(score[i], b[i], h[i], q[i], key, buffers);
    const float visible = Policy::visible(b[i], h[i], q[i], key, buffers);
    const float factor = Gradient::factor(score[i], b[i], h[i], q[i], key, buffers);
    const float row[] = {{changed, visible, factor}};
    std::fwrite(row, sizeof(row), 1, out);
  }}
  std::fclose(out);
}}

int main(int, char **arguments) {{
  const int number = std::atoi(arguments[1]);
{calls}}}
"""
INPUTS = ("score", "b", "h", "q", "kv")


class Policies:
    """A program of several policies."""

    def __init__(self, folder: Path, mods: Mapping[str, Mods]) -> None:
        self.folder = folder
        self.mods = dict(mods)
        self._numbers = {name: number for number, name in enumerate(self.mods)}
        expressions = [each.expression for each in self.mods.values()]
        texts = {each.number: policy(each) + gradient(each) for each in expressions}
        source = folder / "policies.cpp"
        calls = "".join(
            f"  if (number == {i}) run<UserScore<{each.number}>, UserScoreGradient<{each.number}>>"
            "(arguments[2], arguments[3]);\n"
            for i, each in enumerate(expressions)
        )
        policies = f"namespace flashsmith {{\n{''.join(texts.values())}}}\n"
        headers = {"header": HEADER, "gradient_header": GRADIENT_HEADER}
        source.write_text(_PROGRAM.format(**headers, policies=policies, calls=calls))
        sources = [str(source), str(CSRC / "emulator/convert.cpp")]
        warnings = ["-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror"]
        address = ["-fsanitize=address", "-include", "cstdlib"]
        command = [str(CXX), *FLAGS, *warnings, *address, *sources, "-o", str(folder / "policies")]
        subprocess.run(command, check=True)

    def run(
        self, name: str, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the scores, and whether keys are visible, for each row of the inputs."""
        rows = self._run(name, inputs)
        return rows[:, 0], rows[:, 1] != 0

    def factors(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the derivatives of the scores, for each row of the inputs."""
        return self._run(name, inputs)[:, 2]

    def _run(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        mods = self.mods[name]
        n = len(inputs["q"])
        parts = [_ints(n, len(mods.buffers))]
        for tensor in mods.buffers:
            content = _memory(tensor)
            parts += [_ints(*arguments([tensor])), _ints(len(content)), content]
        parts += [inputs[each].contiguous().numpy().tobytes() for each in INPUTS]
        read, written = self.folder / "inputs", self.folder / "outputs"
        read.write_bytes(b"".join(parts))
        program = [self.folder / "policies", str(self._numbers[name]), read, written]
        subprocess.run(program, check=True)
        return torch.frombuffer(bytearray(written.read_bytes()), dtype=torch.float32).view(n, 3)


def _ints(*values: int) -> bytes:
    return torch.tensor(values, dtype=torch.int32).numpy().tobytes()


def _memory(tensor: torch.Tensor) -> bytes:
    """Returns the memory that the tensor's indices reach, and no more."""
    from flashsmith.mods.buffers import extent

    flat = tensor.as_strided((extent(tensor),), (1,))
    return flat.contiguous().view(torch.uint8).numpy().tobytes()
