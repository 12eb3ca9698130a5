#include "emulator/instruction.h"

#include <cstring>

namespace flashsmith::emulator {

const char *name(Instruction instruction) {
  switch (instruction) {
    case Instruction::none:
      return "nothing";
    case Instruction::barrier_sync:
      return "barrier_sync";
    case Instruction::warp_sync:
      return "warp_sync";
    case Instruction::cp_async_wait_group:
      return "cp_async_wait_group";
    case Instruction::cp_async_16:
      return "cp_async_16";
    case Instruction::cp_async_commit_group:
      return "cp_async_commit_group";
    case Instruction::load_shared:
      return "load_shared";
    case Instruction::store_shared:
      return "store_shared";
    case Instruction::load_global:
      return "load_global";
    case Instruction::store_global:
      return "store_global";
    case Instruction::ldmatrix_x4:
      return "ldmatrix_x4";
    case Instruction::mma_m16n8k16:
      return "mma_m16n8k16";
    case Instruction::shuffle_xor:
      return "shuffle_xor";
    case Instruction::vote_any:
      return "vote_any";
  }
  return "unknown";
}

const char *base_name(const char *path) {
  const char *slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

std::string describe(const Where &where) {
  return std::string(base_name(where.file_name())) + ":" + std::to_string(where.line()) + ":" +
         std::to_string(where.column());
}

std::string Step::describe() const {
  std::string text = name(instruction());
  if (modifier() != 0) text += "<" + std::to_string(modifier()) + ">";
  if (where.line() != 0) text += " at " + emulator::describe(where);
  return text;
}

}  // namespace flashsmith::emulator
