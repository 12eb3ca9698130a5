// What an emulated kernel calls: the twins of the instructions in include/flashsmith/ptx/.
// Included in every generated translation unit, so it includes next to nothing itself.
//
// Every function marked "warp" is executed by the 32 lanes of a warp together, with equal
// modifiers; a lane that does something else meanwhile is a Fault. That is stricter than PTX for
// plain memory accesses and cp.async, and lets them be checked and counted as the hardware issues
// them.
#pragma once

#include <cstdint>
#include <source_location>

namespace flashsmith::emulator {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A synchronisation call site: where in the kernel's source the instruction stands.
using Where = std::source_location;

// ---- special registers and memory; any thread ----

unsigned thread_index();  // threadIdx.x
Dim3 block_index();       // blockIdx
Dim3 grid_size();         // gridDim
void *shared_memory();    // base of the block's dynamic shared memory, 1024-byte aligned

// ---- synchronisation; warp. These are the sites that fault injection can drop. ----

void barrier_sync(Where where);  // bar.sync 0: all threads of the block
void warp_sync(Where where);     // bar.warp.sync 0xffffffff
void cp_async_wait_group(int pending,
                         Where where);  // all but the newest `pending` groups have landed

// ---- asynchronous copies; warp. The source is read, and the bytes appear, at the wait. ----

void cp_async_16(void *shared, const void *global);  // cp.async.cg.shared.global, 16 bytes a thread
void cp_async_commit_group();

// ---- plain memory accesses of 4, 8 or 16 bytes a thread; warp ----

void load_shared(void *registers, const void *shared, int bytes);
void store_shared(void *shared, const void *registers, int bytes);
void load_global(void *registers, const void *global, int bytes);
void store_global(void *global, const void *registers, int bytes);

// ---- warp-level matrix instructions and shuffles; warp ----

// ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16; `row` is this lane's row address.
void ldmatrix_x4(uint32_t (&fragment)[4], const void *row, bool transposed);

// mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}.{f16,bf16}.f32, accumulating into `c`.
// Products are exact; they are added to c in order of k, each sum rounded to fp32.
enum class MmaType { f16, bf16 };
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], MmaType type);

// ---- arithmetic; any thread ----

// cvt.rn.{f16x2,bf16x2}.f32: rounds to nearest even; `low` in the lower half of the word.
uint32_t pack(float low, float high, MmaType type);

// ---- exchange; warp ----

float shuffle_xor(float value, int lane_mask);  // shfl.sync.bfly.b32 over the whole warp
bool vote_any(bool predicate);                  // vote.sync.any.pred over the whole warp

}  // namespace flashsmith::emulator
