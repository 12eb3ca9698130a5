// The functions of host/launch.h for GPUs, by the CUDA driver. A device is its number.
#pragma once

#include "host/kernel.h"
#include "host/plan.h"

namespace flashsmith::gpu {

int num_sms(int device);

bool is_capturing(int device, void *stream);

void prepare(const FamilyGpus &gpus, Plan &plan, int device);

double launch(const Plan &plan, const KernelArguments &arguments, int device, void *stream,
              bool timed);

}  // namespace flashsmith::gpu
