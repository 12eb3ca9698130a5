// The interface of an emulated kernel: the counterparts of the instructions in
// include/flashsmith/ptx/. Every generated translation unit includes it, so that it includes next
// to nothing itself.
//
// Every function marked "warp" is executed by the 32 lanes of a warp together, with equal
// modifiers; a lane that does something else meanwhile is a Fault. That is stricter than PTX for
// plain memory accesses and cp.async, and lets them be checked and counted as the hardware issues
// them. Functions marked "thread" are executed by any lane alone, whatever the others do.
//
// The emulator does not notice: order in global memory, except of bulk copies of contiguous bytes
// among each other (and for these not that a bulk_load is overwritten before it has read); a
// missing wgmma_fence after registers were written, if an earlier one has come since the last
// wgmma_wait_group; ordinary reads of registers that wgmma overwrites; a wait for the phase before
// the last, which has the same parity; a single word loaded from shared memory that is used too
// late (plain arithmetic is not seen).
#pragma once

#include <cstdint>
#include <source_location>

#include "emulator/tensor_map.h"

namespace flashsmith::emulator {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A synchronisation call site: the place of the instruction in the kernel's source. It is no
// std::source_location, whose name in symbols is that of one C++ library: the host library and a
// kernel may be built with different ones.
struct Where {
  const char *file_name = "";
  uint32_t line = 0, column = 0;

  static constexpr Where current(std::source_location at = std::source_location::current()) {
    return {at.file_name(), at.line(), at.column()};
  }
};

// ---- special registers and memory; any thread ----

unsigned thread_index();  // threadIdx.x
unsigned cluster_rank();  // %cluster_ctarank
Dim3 block_index();       // blockIdx
Dim3 grid_size();         // gridDim
void *shared_memory();    // base of the block's dynamic shared memory, 1024-byte aligned

// ---- synchronisation; warp. These are the sites that fault injection can drop. ----

void barrier_sync(Where where);  // bar.sync 0: all threads of the block
void cluster_sync(Where where);  // barrier.cluster: all threads of the cluster still running
void warp_sync(Where where);     // bar.warp.sync 0xffffffff
void named_barrier_sync(int id, int threads, Where where);    // bar.sync id, threads
void named_barrier_arrive(int id, int threads, Where where);  // bar.arrive id, threads
void cp_async_wait_group(int pending,
                         Where where);  // waits for all but the newest `pending` groups

// ---- asynchronous copies; warp. The source is read, and the bytes appear, at the wait. ----

// cp.async.cg.shared.global: 16 bytes a thread; if not `active`, zeros without reading the source.
void cp_async_16(void *shared, const void *global, bool active = true);
void cp_async_4(void *shared, const void *global, bool active);  // cp.async.ca: 4 bytes
void cp_async_commit_group();

// ---- plain memory accesses of 4, 8 or 16 bytes a thread; warp. Lanes may be predicated off. ----

void load_shared(void *registers, const void *shared, int bytes);
void store_shared(void *shared, const void *registers, int bytes);
void load_global(void *registers, const void *global, int bytes, bool active = true);
void store_global(void *global, const void *registers, int bytes, bool active = true);

// red.global.add[.v4].f32: 1 or 4 numbers a thread. Each addition is atomic by itself, with those
// of other threads and blocks.
void add_global(float *global, const float *values, int count);

// ---- warp-level matrix instructions and shuffles; warp ----

// ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16; `row` is this lane's row address.
void ldmatrix_x4(uint32_t (&fragment)[4], const void *row, bool transposed);

// stmatrix.sync.aligned.m8n8.x4[.trans].shared.b16; `row` is this lane's row address.
void stmatrix_x4(void *row, const uint32_t (&fragment)[4], bool transposed = false);

// mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}.{f16,bf16}.f32, accumulating into `c`. Products
// are exact; they are added to c in the order of k, each sum rounded to FP32.
enum class MmaType { f16, bf16, e4m3 };  // e4m3: for wgmma only
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t &b0, const uint32_t &b1,
                  MmaType type);

// ---- arithmetic; any thread ----

// cvt.rn.{f16x2,bf16x2}.f32: rounds to nearest even; `low` in the lower half of the word.
uint32_t pack(float low, float high, MmaType type);

float mul_rz(float x, float y);  // mul.rz.f32

// tanh.approx.f32: the error is at most 2^-11 of the result, towards zero.
float tanh_approx(float x);

float unpack(uint16_t bits, MmaType type);  // cvt.f32.{f16,bf16}

uint32_t unpack_e4m3(uint16_t bytes);  // cvt.rn.f16x2.e4m3x2: the lower byte in the lower half

// cvt.rn.satfinite.e4m3x2.f32: `low` in the lower byte; numbers beyond 448, infinity too, become
// 448.
uint16_t pack_e4m3(float low, float high);

// prmt.b32: digit i of the selector chooses byte i among the bytes of the two words, the first's
// counted first; a digit plus 8 chooses the byte's sign.
uint32_t permute_bytes(uint32_t first, uint32_t second, uint32_t selector);

// fma.rn.{f16x2,bf16x2}. A sum that FP64 has to round is rounded twice.
uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c, MmaType type);

// ---- exchange; warp ----

float shuffle_xor(float value, int lane_mask);  // shfl.sync.bfly.b32 over the whole warp
int shuffle_from(int value, int lane);          // shfl.sync.idx.b32 over the whole warp
bool vote_any(bool predicate);                  // vote.sync.any.pred over the whole warp

bool elect_one();  // elect.sync: true in one lane of the warp

// ---- plain memory accesses by one lane; thread ----

uint32_t thread_load_shared(const void *shared);
void thread_store_shared(void *shared, uint32_t word);
void thread_load_global(void *registers, const void *global, int bytes);   // 1, 2 or 4
void thread_store_global(void *global, const void *registers, int bytes);  // 4, 8 or 16
uint32_t thread_atomic_add(void *global, uint32_t value);                  // atom.global.add.u32

// ---- words in global memory, between blocks; thread. Sites that fault injection can drop. ----

// st.release.gpu.global: a thread that reads this value comes after what this thread has done, and
// after bulk copies that it has waited for.
void release_global(uint32_t *word, uint32_t value, Where where);
// atom.acq_rel.gpu.global.add of 1: returns the value before. A thread that reads the sum comes
// after what this thread and those that added before it have done; this thread comes after those,
// too.
uint32_t thread_arrive_global(uint32_t *word, Where where);
// The same with another number.
uint32_t thread_add_global(uint32_t *word, uint32_t amount, Where where);
// atom.acq_rel.gpu.global.cas: returns the value before, which is replaced if it is `expected`.
uint32_t thread_replace_global(uint32_t *word, uint32_t expected, uint32_t value, Where where);
// ld.acquire.gpu.global: returns the value. It waits while the value is `known` and any block can
// change that, so that code which polls a number of times meets both outcomes.
uint32_t thread_poll_global(const uint32_t *word, uint32_t known, Where where);
// ld.acquire.gpu.global in a loop, until the word has this value.
void wait_global(const uint32_t *word, uint32_t value, Where where);
// Orders later bulk copies after what the thread has learned from words.
void fence_proxy_async_global(Where where);

// ---- launches that overlap the launch before; thread ----

// griddepcontrol.wait. A thread of a launch that may overlap the launch before must not access
// global memory, nor let the next launch begin, until it has executed this. A site that fault
// injection can drop, in such launches.
void wait_for_launch_before(Where where);
void let_next_launch_begin();  // griddepcontrol.launch_dependents

// ---- mbarriers; thread. Sites that fault injection can drop. ----

// The mbarrier owns its 8 bytes in shared memory from its initialisation on.
void mbarrier_init(void *barrier, int count, Where where);
void mbarrier_arrive(void *barrier, Where where);
// Arrives at the barrier at the same offset in the shared memory of the cluster's block of this
// rank.
void mbarrier_arrive_remote(void *barrier, int rank, Where where);
void mbarrier_arrive_expect_tx(void *barrier, int bytes, Where where);
void mbarrier_wait_parity(void *barrier, int parity, Where where);  // try_wait, in a loop
void fence_mbarrier_init(Where where);  // before bulk copies use a new mbarrier
void fence_proxy_async(Where where);    // before bulk copies and wgmma see generic writes

// ---- bulk copies; thread ----

// cp.async.bulk.shared::cluster.global: copies contiguous bytes as tma_load copies a box.
void bulk_load(void *shared, const void *global, int bytes, void *barrier);

// cp.async.bulk.global.shared::cta: copies contiguous bytes as tma_store copies a box.
void bulk_store(void *global, const void *shared, int bytes);

// cp.reduce.async.bulk.global.shared::cta.add.f32: like bulk_store, but numbers are added, each
// atomic by itself with the additions of other threads and blocks.
void bulk_add(float *global, const void *shared, int bytes);

// cp.async.bulk.tensor: copies the box at `coordinates` (one for each dimension, the contiguous one
// first). The source is read, and the bytes appear, when a thread waits for the mbarrier's phase.
// Elements outside the tensor are zero.
void tma_load(void *shared, const TensorMap &map, void *barrier, const int *coordinates, int rank);

// Copies the box to the same offset in each block of the cluster whose rank's bit is set in
// `blocks`, counted by its mbarrier at the offset of `barrier`.
void tma_load_multicast(void *shared, const TensorMap &map, void *barrier, uint16_t blocks,
                        const int *coordinates, int rank);

// Copies to a box. The bytes are read and written at the waits of this thread, except elements
// outside the tensor.
void tma_store(const TensorMap &map, const void *shared, const int *coordinates, int rank);
void tma_store_commit_group(Where where);
void tma_store_wait_group(int pending, Where where);       // all but `pending` are written
void tma_store_wait_group_read(int pending, Where where);  // ... have been read

// ---- warpgroup-level matrix instructions; warp, and all four of the warpgroup execute them ----

// wgmma.mma_async.m64nNk16, or k32 of e4m3, with FP32 accumulators: c (64, n) += a (64, k) * b (k,
// n), or = with `accumulate` false. Operands are read at the wait that covers the instruction, and
// accumulators hold poison until then. The order of the sum is that of mma_m16n8k16. With e4m3 the
// sum is as rough as Hopper's: c and the products are truncated 13 bits behind the leading bit of
// the largest, and then added; the sum is truncated in the same way (DeepSeek-V3, section 3.3.2;
// docs/emulator.md).
struct Wgmma {
  float *c;                     // n / 2 registers of this lane
  const uint32_t *a_registers;  // 4 registers of this lane; or nullptr: a is in shared memory
  uint64_t a, b;                // descriptors
  int n;
  MmaType type;
  bool a_mn_major, b_mn_major;
  bool accumulate;
};
void wgmma(Wgmma instruction);
void wgmma_fence(Where where);  // orders the registers' ordinary accesses before wgmma
void wgmma_commit_group(Where where);
void wgmma_wait_group(int pending, Where where);

// setmaxnreg.{inc,dec}: only checks that the block's registers suffice; inc waits for them.
void set_register_count(int count, bool increase);

}  // namespace flashsmith::emulator
