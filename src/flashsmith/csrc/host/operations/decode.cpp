// The operations of a decode kernel.
#include "host/check/decode.h"

#include <tvm/ffi/any.h>

#include <memory>
#include <optional>

#include "host/accepted_decode.h"
#include "host/args/call.h"
#include "host/last_accepted.h"
#include "host/launch.h"
#include "host/operations/facts.h"

namespace flashsmith {
namespace {

using tvm::ffi::Any;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;

// The numbers of DecodeNumbers and of AppendNumbers, and the arguments of `append`, of which the
// last two belong to every operation.
constexpr int kOwnNumbers = 3, kAppendNumbers = 2, kAppendTensors = kAppendOwn.size() + 2;

DecodeNumbers own_of(PackedArgs arguments) {
  return {.splits = arguments[0].cast<int64_t>(),
          .n_new = arguments[1].cast<int64_t>(),
          .of_attention = arguments[2].cast<bool>()};
}

std::span<const Argument> table_of(const DecodeNumbers &own) {
  return own.of_attention ? kDecodeArgumentsOfAttention : kDecodeArguments;
}

Call call_of(const DecodeNumbers &own, PackedArgs arguments) {
  return Call("decode", table_of(own), arguments);
}

DecodeTensors tensors_of(const DecodeNumbers &own, const Call &call) {
  return {tensors_of<kDecodeArguments.size()>(call), table_of(own)};
}

// The new keys and values of a call, to be appended to the cache.
struct AppendCall {
  AppendNumbers numbers;
  Call call;

  explicit AppendCall(PackedArgs arguments)
      : numbers{.interleaved = arguments[0].cast<bool>(),
                .queries_in_a_row = arguments[1].cast<bool>()},
        call("append", kAppendArguments,
             arguments.Slice(kAppendNumbers, kAppendNumbers + kAppendTensors)) {}

  AppendTensors tensors() const { return AppendTensors(tensors_of<kAppendArguments.size()>(call)); }
};

Facts facts_of_call(const DecodeKernel &kernel, const DecodeNumbers &own, const Call &call) {
  const DecodeTensors tensors = tensors_of(own, call);
  const ForwardProblem problem = check_decode(kernel, tensors, call.numbers(), own);
  const int num_sms = num_sms_of(kernel.kind, tensors.q().device());
  return facts_of(kernel.plan(problem, own, tensors.have_equal_lengths(), num_sms));
}

// Returns milliseconds if `timed`.
double decode(const DecodeKernel &kernel, bool timed, const DecodeNumbers &own, const Call &call) {
  const DecodeTensors tensors = tensors_of(own, call);
  const AcceptedDecode accepted(kernel, tensors, call.numbers(), own);
  accepted.check(tensors, call.numbers());
  return accepted.run(tensors, call.numbers(), timed);
}

// Appends k and v to the keys and values that the cache holds of each request.
void append(const DecodeKernel &kernel, const AppendCall &call) {
  const AppendTensors tensors = call.tensors();
  const AcceptedAppend accepted(kernel, tensors);
  accepted.check(tensors);
  accepted.run(tensors, call.numbers);
}

// Returns a function that makes a call and returns true, or returns false if counters or workspace
// are missing. It takes the stream that these are kept for (host/workspace.h), the arguments of
// `append` if the calls append, then those of `decode` behind DecodeNumbers. All checks of a call
// come before its first launch, so that the cache stays unchanged if one fails.
Function bind(const DecodeKernel &kernel, bool appends, const DecodeNumbers &own) {
  const auto last = std::make_shared<LastAccepted<AcceptedDecode>>();
  const auto last_append = std::make_shared<LastAccepted<AcceptedAppend>>();
  return Function::FromPacked([=, &kernel](PackedArgs given, Any *done) {
    const auto stream = given[0].cast<int64_t>();
    const PackedArgs arguments = given.Slice(1);
    std::optional<AppendCall> append;
    std::shared_ptr<const AcceptedAppend> accepted_append;
    if (appends) {
      append.emplace(arguments);
      accepted_append = last_append->like(kernel, append->tensors());
      accepted_append->check(append->tensors());
    }
    const int n_before = appends ? kAppendNumbers + kAppendTensors : 0;
    const Call call = call_of(own, arguments.Slice(n_before));
    DecodeTensors tensors = tensors_of(own, call);
    const auto accepted = last->like(kernel, tensors, call.numbers(), own);
    *done = accepted->has_memory(tensors, stream);
    if (!done->cast<bool>()) return;
    accepted->leave_out_workspace(tensors);
    accepted->check(tensors, call.numbers());
    if (append) accepted_append->run(append->tensors(), append->numbers);
    accepted->run(tensors, call.numbers(), false);
  });
}

}  // namespace

Operations DecodeKernel::operations() const {
  return {{"plan", Function::FromPacked([this](PackedArgs arguments, Any *result) {
             const DecodeNumbers own = own_of(arguments);
             *result = facts_of_call(*this, own, call_of(own, arguments.Slice(kOwnNumbers)));
           })},
          {"decode", Function::FromPacked([this](PackedArgs arguments, Any *result) {
             const DecodeNumbers own = own_of(arguments.Slice(1));
             *result = decode(*this, arguments[0].cast<bool>(), own,
                              call_of(own, arguments.Slice(1 + kOwnNumbers)));
           })},
          {"append", Function::FromPacked([this](PackedArgs arguments, Any *) {
             append(*this, AppendCall(arguments));
           })},
          {"bind", Function::FromPacked([this](PackedArgs arguments, Any *result) {
             *result = bind(*this, arguments[0].cast<bool>(), own_of(arguments.Slice(1)));
           })}};
}

}  // namespace flashsmith
