// The hot path of every operation: a call like an earlier one finds its kernel here, without
// Python.
//
// Python passes the arguments of a call unchanged. Their values become a key, like the key that
// Python's slower path computes; the kernel's `bind` checks and plans each call. Everything that is
// new, odd or refused is left to Python, which chooses kernels, converts arguments and words
// errors.
#pragma once

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

namespace flashsmith {

// The answers of a function of the cache.
enum Answer : int64_t {
  kUnknown = 0,  // nothing was done: Python has to make the call
  kMade = 1,     // the call was made
  kHalfO = 2,    // nothing was done: o has to be float16, with v's d_v
  kBfloatO = 4,  // nothing was done: o has to be bfloat16, with v's d_v
};

using Functions = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Function>;

// Returns a new cache: `attend`, `decode` and `backward` make calls, `remember_attend` and so on
// keep how calls with a key are made, `forget` drops everything. `this_thread` returns the number
// of the calling thread, `drop_thread` drops the memory that is kept for the thread with a number.
Functions make_launch_cache();

class KnownLaunchers;

// Arguments: an integer that identifies the configuration, q, k, v, o, lse, whether o was made for
// the call, and a specification (spec.h).
int64_t attend(const KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: those of `Making` (known.h): the function that `bind` returned, an object that must
// live as long, whether the function belongs to a kernel of `decode`, and the stream, workspace and
// counters that are kept for this thread; then those of `attend`.
void remember_attend(KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: an integer that identifies the configuration, q, o, lse; `KVCache`; `DecodeOptions`
// without its configuration; alibi_slopes, sinks, the hash of functions and the tensors that these
// read. A call that appends adds `KVAppend` and the output for the rotated q.
int64_t decode(const KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: those of `Making`, then those of `decode`.
void remember_decode(KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: an integer that identifies the configuration, whether results must be deterministic,
// the tensors of `kBackwardOwn`, and a specification.
int64_t backward(const KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: those of `Making`, then those of `backward`.
void remember_backward(KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

}  // namespace flashsmith
