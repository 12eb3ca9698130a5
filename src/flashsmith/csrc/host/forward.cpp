#include "host/forward.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "host/accepted_call.h"
#include "host/check/check.h"
#include "host/launch.h"
#include "host/registry.h"

namespace flashsmith {
namespace {

DLDevice device_of(const ForwardTensors &tensors) { return tensors.q().device(); }

Plan plan_of(const ForwardKernel &kernel, const ForwardTensors &tensors,
             const ForwardProblem &problem) {
  return kernel.plan(problem, multiprocessors_of(device_of(tensors)));
}

// Checks everything but what changes with the addresses.
AcceptedCall accept(const ForwardKernel &kernel, const ForwardTensors &tensors,
                    const ForwardNumbers &numbers) {
  const ForwardProblem problem = check_problem(kernel, tensors, numbers);
  if (problem.is_empty()) return {{}, problem, {}};
  Plan plan = plan_of(kernel, tensors, problem);
  check_memory(kernel, tensors, plan);
  prepare(kernel.gpus, plan, device_of(tensors));
  return {{}, problem, std::move(plan)};
}

// The last call of each kernel on this thread that could be remembered.
std::optional<AcceptedCall> &last_call(int64_t handle) {
  static thread_local std::vector<std::unique_ptr<std::optional<AcceptedCall>>> calls(
      registered_kernels().size());
  auto &call = calls[static_cast<size_t>(handle)];
  if (!call) call = std::make_unique<std::optional<AcceptedCall>>();
  return *call;
}

double run(const ForwardKernel &kernel, const AcceptedCall &call, const ForwardTensors &tensors,
           const ForwardNumbers &numbers, bool timed) {
  if (call.problem.is_empty()) return 0;
  check_apart(tensors.all());
  check_numbers(kernel, numbers);
  check_key_ranges(tensors, numbers);
  return launch(call.plan, kernel.arguments(tensors, call.problem, numbers), tensors.all(), timed);
}

}  // namespace

Plan plan_forward(const ForwardKernel &kernel, const ForwardTensors &tensors,
                  const ForwardNumbers &numbers) {
  return plan_of(kernel, tensors, check_problem(kernel, tensors, numbers));
}

double run_forward(int64_t handle, const ForwardTensors &tensors, const ForwardNumbers &numbers,
                   bool timed) {
  const ForwardKernel &kernel = kernel_of(handle);
  const std::optional<CallLook> look = look_of(tensors.all(), numbers);
  if (!look) return run(kernel, accept(kernel, tensors, numbers), tensors, numbers, timed);
  std::optional<AcceptedCall> &last = last_call(handle);
  if (!last || last->look != *look) {
    AcceptedCall accepted = accept(kernel, tensors, numbers);
    accepted.look = *look;
    last = std::move(accepted);
  }
  return run(kernel, *last, tensors, numbers, timed);
}

}  // namespace flashsmith
