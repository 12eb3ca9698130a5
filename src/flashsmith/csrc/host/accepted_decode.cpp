#include "host/accepted_decode.h"

#include "host/check/decode.h"
#include "host/launch.h"
#include "host/workspace.h"

namespace flashsmith {
namespace {

using tvm::ffi::TensorView;

}  // namespace

AcceptedDecode::AcceptedDecode(const DecodeKernel &kernel, const DecodeTensors &tensors,
                               const Numbers &numbers, const DecodeNumbers &own)
    : kernel_(kernel),
      own_(own),
      looks_(tensors.all()),
      problem_(check_decode(kernel, tensors, numbers, own)) {
  const DLDevice device = tensors.q().device();
  plan_ = kernel.plan(problem_, own, tensors.have_equal_lengths(), num_sms_of(kernel.kind, device));
  if (plan_.launches.empty()) {  // refused in the same way, though nothing is read
    tensors.all().for_each([](const Argument &argument, const TensorView &t) {
      if (has_rows(argument) && t.numel() > 0) check_rows(argument, t);
    });
    return;
  }
  check_memory(tensors.all());
  kernel.check_layout(tensors);
  prepare(kernel.gpus, plan_, device);
}

bool AcceptedDecode::has_memory(const DecodeTensors &tensors, int64_t stream) const {
  if (plan_.counter_bytes == 0 && plan_.workspace_bytes == 0) return true;
  return has_bytes(tensors.counters(), plan_.counter_bytes) &&
         has_bytes(tensors.workspace(), plan_.workspace_bytes) &&
         (stream == kFresh || is_current(tensors.q().device(), stream));
}

void AcceptedDecode::leave_out_workspace(DecodeTensors &tensors) const {
  if (plan_.workspace_bytes == 0) tensors.set_workspace(nullptr);
}

void AcceptedDecode::check(const DecodeTensors &tensors, const Numbers &numbers) const {
  if (plan_.launches.empty()) return;
  check_workspace(tensors.all(), plan_);
  check_counters(tensors, plan_);
  check_apart(tensors.all());
  check_numbers(kernel_, numbers);
}

double AcceptedDecode::run(const DecodeTensors &tensors, const Numbers &numbers, bool timed) const {
  if (plan_.launches.empty()) return 0;
  return launch(plan_, kernel_.arguments(tensors, problem_, numbers, own_, plan_), tensors.all(),
                timed);
}

AcceptedAppend::AcceptedAppend(const DecodeKernel &kernel, const AppendTensors &tensors)
    : looks_(tensors.all()) {
  check_append(kernel, tensors);
  plan_ = kernel.append_plan(tensors);
  if (!plan_.launches.empty()) prepare(kernel.gpus, plan_, tensors.k().device());
}

void AcceptedAppend::check(const AppendTensors &tensors) const { check_append_apart(tensors); }

void AcceptedAppend::run(const AppendTensors &tensors, const AppendNumbers &numbers) const {
  if (plan_.launches.empty()) return;
  launch(plan_, KernelArguments(append_args(tensors, numbers)), tensors.all(), false);
}

}  // namespace flashsmith
