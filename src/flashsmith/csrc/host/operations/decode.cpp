// What can be done with a decode kernel.
#include "host/check/decode.h"

#include <tvm/ffi/any.h>
#include <tvm/ffi/error.h>

#include "host/args/call.h"
#include "host/decode_kernel.h"
#include "host/launch.h"
#include "host/looks.h"
#include "host/operations/facts.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;

constexpr int kOwnNumbers = 2;

DecodeNumbers own_of(PackedArgs arguments) {
  return {.splits = arguments[0].cast<int64_t>(), .n_new = arguments[1].cast<int64_t>()};
}

Call call_of(PackedArgs arguments, const Numbers &otherwise = {}) {
  return Call("decode", kDecodeArguments, arguments.Slice(kOwnNumbers), otherwise);
}

DecodeTensors tensors_of(const Call &call) {
  return DecodeTensors(tensors_of<kDecodeArguments.size()>(call));
}

Facts facts_of_call(const DecodeKernel &kernel, const DecodeNumbers &own, const Call &call) {
  const DecodeTensors tensors = tensors_of(call);
  const ForwardProblem problem = check_decode(kernel, tensors, call.numbers(), own);
  return facts_of(kernel.plan(problem, own, multiprocessors_of(tensors.q().device())));
}

// A call that the kernel took: the next one that looks the same is not checked again.
class AcceptedDecode {
  const DecodeKernel &kernel_;
  DecodeNumbers own_;
  Looks looks_;
  ForwardProblem problem_;
  DecodePlan plan_;

 public:
  AcceptedDecode(const DecodeKernel &kernel, const DecodeTensors &tensors, const Numbers &numbers,
                 const DecodeNumbers &own)
      : kernel_(kernel),
        own_(own),
        looks_(tensors.all()),
        problem_(check_decode(kernel, tensors, numbers, own)) {
    const DLDevice device = tensors.q().device();
    plan_ = kernel.plan(problem_, own, multiprocessors_of(device));
    if (plan_.launches.empty()) return;
    check_memory(tensors.all());
    kernel.check_layout(tensors);
    check_workspace(tensors.all(), plan_);
    check_counters(tensors, plan_);
    prepare(kernel.gpus, plan_, device);
  }

  bool fits(const DecodeTensors &tensors, const Numbers &numbers) const {
    return !numbers.top_left && looks_.fit(tensors.all());
  }

  // Returns milliseconds if `timed`.
  double run(const DecodeTensors &tensors, const Numbers &numbers, bool timed) const {
    if (plan_.launches.empty()) return 0;
    check_apart(tensors.all());
    check_numbers(kernel_, numbers);
    return launch(plan_, kernel_.arguments(tensors, problem_, numbers, own_, plan_), tensors.all(),
                  timed);
  }
};

double decode(const DecodeKernel &kernel, bool timed, const DecodeNumbers &own, const Call &call) {
  const DecodeTensors tensors = tensors_of(call);
  return AcceptedDecode(kernel, tensors, call.numbers(), own).run(tensors, call.numbers(), timed);
}

// As `decode`. Returns a function that does it again, for tensors that look the same; for others it
// does nothing and returns false.
Function repeatable(const DecodeKernel &kernel, const DecodeNumbers &own, const Call &call) {
  const DecodeTensors tensors = tensors_of(call);
  const AcceptedDecode accepted(kernel, tensors, call.numbers(), own);
  accepted.run(tensors, call.numbers(), false);
  return Function::FromPacked(
      [accepted, numbers = call.numbers()](PackedArgs arguments, Any *done) {
        const Call again("decode", kDecodeArguments, arguments, numbers);
        const DecodeTensors tensors = tensors_of(again);
        *done = accepted.fits(tensors, again.numbers());
        if (done->cast<bool>()) accepted.run(tensors, again.numbers(), false);
      });
}

// Puts k and v into the cache behind what it holds of each request.
void append(const DecodeKernel &kernel, PackedArgs arguments) {
  const AppendNumbers numbers{.interleaved = arguments[0].cast<bool>(),
                              .queries_in_a_row = arguments[1].cast<bool>()};
  const Call call("append", kAppendArguments, arguments.Slice(kOwnNumbers));
  const AppendTensors tensors(tensors_of<kAppendArguments.size()>(call));
  check_append(kernel, tensors);
  Plan plan = kernel.append_plan(tensors);
  if (plan.launches.empty()) return;
  prepare(kernel.gpus, plan, tensors.k().device());
  launch(plan, KernelArguments(append_args(tensors, numbers)), tensors.all(), false);
}

}  // namespace

Operations DecodeKernel::operations() const {
  return {{"plan", Function::FromPacked([this](PackedArgs arguments, Any *result) {
             *result = facts_of_call(*this, own_of(arguments), call_of(arguments));
           })},
          {"decode", Function::FromPacked([this](PackedArgs arguments, Any *result) {
             const PackedArgs rest = arguments.Slice(1);
             *result = decode(*this, arguments[0].cast<bool>(), own_of(rest), call_of(rest));
           })},
          {"repeatable", Function::FromPacked([this](PackedArgs arguments, Any *result) {
             *result = repeatable(*this, own_of(arguments), call_of(arguments));
           })},
          {"append", Function::FromPacked(
                         [this](PackedArgs arguments, Any *) { append(*this, arguments); })}};
}

}  // namespace flashsmith
