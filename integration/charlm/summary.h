// What a run says at its end: hashes of everything that was trained, memory, and the JSON summary.
#pragma once
#include "tensor.h"

#include <cstdint>
#include <string>
#include <vector>

namespace charlm {

struct Hashes {
  uint64_t parameters, exp_avg, exp_avg_sq, steps;
};

// Of the tensors in their order, from copies; call after the stream is idle.
Hashes hash_tensors(const std::vector<Tensor> &tensors);

struct Summary {
  std::string outcome; // "trained", "out of memory" or "failed"
  std::string message; // of the error; empty when trained
  std::vector<float> losses;
  uint64_t first_step = 1; // of the losses
  Hashes hashes = {};
  uint64_t parameter_elements = 0;
  uint32_t scratch_sum = 0;
  size_t device_peak = 0, device_peak_without_activations = 0;
  size_t segments_released = 0; // to the driver, under memory pressure
  double seconds = 0;
};

// To standard output; only of a run that trained.
void print_summary(const Summary &summary);

// Throws std::runtime_error when the file can't be written.
void write_json(const std::string &path, const Summary &summary);

} // namespace charlm
