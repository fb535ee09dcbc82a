// A trained tensor and what belongs to it, all in device memory from the caching allocator.
#pragma once
#include <cstdint>
#include <string>

namespace charlm {

struct Tensor {
  std::string name;
  int64_t elements;
  float *parameter = nullptr;
  float *gradient = nullptr; // from the first backward on
  // From the first optimizer step on:
  float *exp_avg = nullptr, *exp_avg_sq = nullptr;
  float *step = nullptr;           // one float
  void *parameter_block = nullptr; // what the allocator handed out for the parameter
  // With --share-piece: where exp_avg and exp_avg_sq are to be created.
  void *exp_avg_place = nullptr, *exp_avg_sq_place = nullptr;
};

} // namespace charlm
