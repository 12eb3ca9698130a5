// The functions of host/launch.h for GPUs, by the CUDA driver. A device is its number.
#pragma once

#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith::gpu {

// Makes a device's context current while it lives, unless a context of the device is current. The
// driver takes most calls only from threads with a context, and new threads have none.
class DeviceGuard {
  bool is_pushed_ = false;

 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard &) = delete;
  DeviceGuard &operator=(const DeviceGuard &) = delete;
};

int num_sms(int device);

bool is_capturing(int device, void *stream);

void prepare(const FamilyGpus &gpus, Plan &plan, int device);

double launch(const Plan &plan, const KernelArguments &arguments, int device, void *stream,
              bool timed);

}  // namespace flashsmith::gpu
