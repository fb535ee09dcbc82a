// The end of a run in words and in JSON; see summary.h.
#include "summary.h"

#include "corpus.h"
#include "cuda_check.h"

#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace charlm {
namespace {

uint64_t hash_device(uint64_t hash, const float *values, size_t elements) {
  std::vector<float> copy(elements);
  CUDA_CHECK(cudaMemcpy(copy.data(), values, elements * sizeof(float), cudaMemcpyDeviceToHost));
  return hash_bytes(hash, copy.data(), elements * sizeof(float));
}

// JSON has no infinities.
std::string number(double value) {
  if (!std::isfinite(value))
    return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string hexadecimal(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

std::string quoted(const std::string &text) {
  std::string result = "\"";
  for (const char c : text) {
    char code[8];
    std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned char>(c));
    if (c == '"' || c == '\\')
      result += std::string("\\") + c;
    else if (static_cast<unsigned char>(c) < 0x20)
      result += code;
    else
      result += c;
  }
  return result + "\"";
}

// Together: what the parameters, and what the moments and step counters hash to.
uint64_t hash_of_state(const Hashes &hashes) {
  uint64_t hash = hash_start;
  for (const uint64_t part : {hashes.exp_avg, hashes.exp_avg_sq, hashes.steps})
    hash = hash_bytes(hash, &part, sizeof part);
  return hash;
}

} // namespace

Hashes hash_tensors(const std::vector<Tensor> &tensors) {
  Hashes hashes = {hash_start, hash_start, hash_start, hash_start};
  for (const Tensor &tensor : tensors) {
    const size_t elements = static_cast<size_t>(tensor.elements);
    hashes.parameters = hash_device(hashes.parameters, tensor.parameter, elements);
    hashes.exp_avg = hash_device(hashes.exp_avg, tensor.exp_avg, elements);
    hashes.exp_avg_sq = hash_device(hashes.exp_avg_sq, tensor.exp_avg_sq, elements);
    hashes.steps = hash_device(hashes.steps, tensor.step, 1);
  }
  return hashes;
}

void print_summary(const Summary &s) {
  std::printf("trained %" PRIu64 " parameters\n", s.parameter_elements);
  const struct {
    const char *name;
    uint64_t hash;
  } lines[] = {{"parameters", s.hashes.parameters},
               {"exp_avg", s.hashes.exp_avg},
               {"exp_avg_sq", s.hashes.exp_avg_sq},
               {"steps", s.hashes.steps}};
  for (const auto &line : lines)
    std::printf("hash of %-10s %s\n", line.name, hexadecimal(line.hash).c_str());
  if (s.scratch_sum != 0)
    std::printf("scratch sum %08" PRIx32 "\n", s.scratch_sum);
  std::printf("device memory: peak %zu bytes; without activations %zu bytes\n", s.device_peak,
              s.device_peak_without_activations);
}

void write_json(const std::string &path, const Summary &s) {
  std::string losses;
  for (const float loss : s.losses)
    losses += (losses.empty() ? "" : ", ") + number(loss);
  const bool any = !s.losses.empty();
  std::string text = "{\n";
  auto add = [&](const char *key, const std::string &value, const char *end = ",\n") {
    text += std::string("  \"") + key + "\": " + value + end;
  };
  add("outcome", quoted(s.outcome));
  add("message", quoted(s.message));
  add("steps", std::to_string(s.losses.size()));
  add("first_step", std::to_string(s.first_step));
  add("loss_first", any ? number(s.losses.front()) : "null");
  add("loss_last", any ? number(s.losses.back()) : "null");
  add("losses", "[" + losses + "]");
  const bool trained = s.outcome == "trained";
  auto hash = [&](uint64_t value) { return trained ? quoted(hexadecimal(value)) : "null"; };
  add("params", hash(s.hashes.parameters));
  add("state", hash(hash_of_state(s.hashes)));
  add("exp_avg", hash(s.hashes.exp_avg));
  add("exp_avg_sq", hash(s.hashes.exp_avg_sq));
  add("step_counters", hash(s.hashes.steps));
  add("scratch_sum", std::to_string(s.scratch_sum));
  add("parameter_elements", std::to_string(s.parameter_elements));
  add("device_peak", std::to_string(s.device_peak));
  add("device_peak_without_activations", std::to_string(s.device_peak_without_activations));
  add("segments_released", std::to_string(s.segments_released));
  add("seconds", number(s.seconds), "\n}\n");
  std::FILE *file = std::fopen(path.c_str(), "w");
  const bool written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file && std::fclose(file) == 0;
  if (!written || !closed)
    throw std::runtime_error("can't write " + path + ": " + std::strerror(errno));
}

} // namespace charlm
