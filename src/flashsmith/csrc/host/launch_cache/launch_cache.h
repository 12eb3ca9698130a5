// The hot path of every operation: a call that is like one that was made before finds its kernel
// here, without Python.
//
// Python asks with the arguments of a call as they are. What they say becomes a key, as Python's
// slower way makes one; the kernel's own `bind` checks and plans each call. Whatever is new, odd or
// refused is left to Python, which chooses kernels, converts arguments and words errors.
#pragma once

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

namespace flashsmith {

// What a function of the cache answers.
enum Answer : int64_t {
  kUnknown = 0,  // nothing was done: the call is Python's
  kMade = 1,     // the call was made
  kHalfO = 2,    // nothing was done: o has to be of float16, and of v's d_v
  kBfloatO = 4,  // likewise, of bfloat16
};

using Functions = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Function>;

// A new cache: `attend`, `decode` and `backward` make calls, `remember_attend` and so on say how
// calls like one are made, `forget` drops everything. `this_thread` gives the number of the calling
// thread, `drop_thread` drops the memory that is kept for the thread of a number.
Functions make_launch_cache();

class KnownLaunchers;

// Arguments: an integer that tells configurations apart, q, k, v, o, lse, whether o was made for
// the call, and a specification (spec.h).
int64_t attend(const KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: those of `Making` (known.h): what `bind` gave, what must live as long as that, whether
// that is of a kernel of `decode`, and the stream, workspace and counters that are kept for this
// thread; then those of `attend`.
void remember_attend(KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: an integer that tells configurations apart, q, o, lse; `KVCache`; `DecodeOptions`
// without its configuration; alibi_slopes, sinks, the hash of functions and what these read. Of a
// call that appends, `KVAppend` and where q goes when it is turned.
int64_t decode(const KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: those of `Making`, then those of `decode`.
void remember_decode(KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: an integer that tells configurations apart, whether the same bits are wanted at every
// run, the tensors of `kBackwardOwn`, and a specification.
int64_t backward(const KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

// Arguments: those of `Making`, then those of `backward`.
void remember_backward(KnownLaunchers &known, tvm::ffi::PackedArgs arguments);

}  // namespace flashsmith
