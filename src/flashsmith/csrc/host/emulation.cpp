#include "host/emulation.h"

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

namespace flashsmith {

Emulation &current_emulation() {
  static thread_local Emulation emulation;
  return emulation;
}

namespace {

using tvm::ffi::Array;
using tvm::ffi::Map;
using tvm::ffi::String;
using tvm::ffi::Tuple;
using SiteTuple = Tuple<String, String, int64_t, int64_t>;  // kind, file, line, column

// Sets the options for the launches of the calling thread. `dropped`: none, or one site that does
// nothing. `num_sms`: 0 is the usual number.
void emulator_configure(int64_t seed, Array<SiteTuple> dropped, bool count, int64_t workers,
                        int64_t num_sms) {
  emulator::Options options;
  options.seed = static_cast<uint64_t>(seed);
  options.count = count;
  options.workers = static_cast<int>(workers);
  for (const SiteTuple &site : dropped) {
    options.dropped =
        emulator::Site{site.get<0>(), site.get<1>(), static_cast<unsigned>(site.get<2>()),
                       static_cast<unsigned>(site.get<3>())};
  }
  current_emulation().options = options;
  current_emulation().num_sms = num_sms > 0 ? static_cast<int>(num_sms) : kEmulatedSMs;
}

// Returns what all launches of the calling thread's last call counted.
Map<String, int64_t> emulator_counters() {
  const emulator::Counters &c = current_emulation().report.counters;
  Map<String, int64_t> counters;
#define FLASHSMITH_COUNTER(name) counters.Set(#name, static_cast<int64_t>(c.name))
  FLASHSMITH_COUNTER(mma);
  FLASHSMITH_COUNTER(ldmatrix);
  FLASHSMITH_COUNTER(longest_ldmatrix_run);
  FLASHSMITH_COUNTER(longest_mma_run);
  FLASHSMITH_COUNTER(cp_async);
  FLASHSMITH_COUNTER(cp_async_in_flight_mma);
  FLASHSMITH_COUNTER(shuffles);
  FLASHSMITH_COUNTER(barriers);
  FLASHSMITH_COUNTER(shared_wavefronts);
  FLASHSMITH_COUNTER(shared_wavefronts_ideal);
  FLASHSMITH_COUNTER(global_load_bytes);
  FLASHSMITH_COUNTER(global_load_sectors);
  FLASHSMITH_COUNTER(global_store_bytes);
  FLASHSMITH_COUNTER(global_store_sectors);
  FLASHSMITH_COUNTER(wgmma);
  FLASHSMITH_COUNTER(wgmma_flops);
  FLASHSMITH_COUNTER(wgmma_shared_bytes);
  FLASHSMITH_COUNTER(tma_loads);
  FLASHSMITH_COUNTER(tma_load_bytes);
  FLASHSMITH_COUNTER(tma_stores);
  FLASHSMITH_COUNTER(tma_store_bytes);
  FLASHSMITH_COUNTER(mbarrier_waits);
  FLASHSMITH_COUNTER(mbarrier_arrivals);
  FLASHSMITH_COUNTER(named_barriers);
#undef FLASHSMITH_COUNTER
  return counters;
}

// Returns the synchronisation sites that ran in that call.
Array<SiteTuple> emulator_sites() {
  Array<SiteTuple> sites;
  for (const emulator::Site &s : current_emulation().report.sites) {
    sites.push_back(SiteTuple(String(s.kind), String(s.file), int64_t(s.line), int64_t(s.column)));
  }
  return sites;
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(emulator_configure, emulator_configure);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(emulator_counters, emulator_counters);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(emulator_sites, emulator_sites);

}  // namespace flashsmith
