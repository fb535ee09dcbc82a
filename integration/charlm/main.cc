// charlm: trains a character-level language model on a text file. The order of a run is here; the
// program is an ordinary user of the CUDA runtime.
#include "allocator.h"
#include "checkpoint.h"
#include "corpus.h"
#include "cuda_check.h"
#include "model.h"
#include "optimizer.h"
#include "options.h"
#include "summary.h"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>

namespace charlm {
namespace {

enum ExitStatus { exit_trained = 0, exit_failed = 1, exit_usage = 2, exit_out_of_memory = 3 };

struct Stream {
  cudaStream_t handle = nullptr;
  Stream() {
    CUDA_CHECK(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
  }
  ~Stream() {
    (void)cudaStreamSynchronize(handle);
    (void)cudaStreamDestroy(handle);
  }
  Stream(const Stream &) = delete;
  Stream &operator=(const Stream &) = delete;
};

struct Event {
  cudaEvent_t handle = nullptr;
  Event() {
    CUDA_CHECK(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming));
  }
  ~Event() {
    (void)cudaEventDestroy(handle);
  }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
};

// Losses come to pinned memory, so that a copy does not wait by itself.
struct PinnedLosses {
  float *values = nullptr;
  explicit PinnedLosses(uint64_t count) {
    CUDA_CHECK(cudaMallocHost(reinterpret_cast<void **>(&values), count * sizeof(float)));
  }
  ~PinnedLosses() {
    (void)cudaFreeHost(values);
  }
  PinnedLosses(const PinnedLosses &) = delete;
  PinnedLosses &operator=(const PinnedLosses &) = delete;
};

// Takes all device memory but `limit` bytes for the rest of the process, from the driver's own pool
// where there is one: to the program the device is a small one, and out of memory is the driver's
// answer.
void leave_device_memory(uint64_t limit, cudaStream_t stream) {
  size_t free_bytes = 0, total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes <= limit)
    return;
  void *taken = nullptr;
  int device = 0, pools = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
  if (pools) {
    CUDA_CHECK(cudaMallocAsync(&taken, free_bytes - limit, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
  } else {
    CUDA_CHECK(cudaMalloc(&taken, free_bytes - limit));
  }
}

void run(const Options &options, Summary &summary) {
  const Corpus corpus = read_corpus(options.text_path, options.context);
  CachingAllocator allocator(options.segment_scale);
  PinnedLosses losses(options.steps);
  Event loss_is_there;
  Stream stream, copies; // wait at their end, before what their work uses goes
  if (options.device_limit != 0)
    leave_device_memory(options.device_limit, stream.handle);
  // Whatever ends the run, the peaks are told.
  struct NotePeaks {
    const CachingAllocator &allocator;
    Summary &summary;
    ~NotePeaks() {
      summary.device_peak = allocator.reserved_bytes_peak();
      summary.device_peak_without_activations = allocator.lasting_bytes_peak();
      summary.segments_released = allocator.releases();
    }
  } note_peaks{allocator, summary};

  Model model(options, corpus, allocator, stream.handle);
  for (const Tensor &tensor : model.tensors())
    summary.parameter_elements += static_cast<uint64_t>(tensor.elements);
  Optimizer optimizer(options, model.tensors(), allocator, stream.handle);
  uint64_t done = 0;
  if (!options.resume.empty()) {
    optimizer.create_state();
    CUDA_CHECK(cudaStreamSynchronize(stream.handle));
    done = load_checkpoint(options.resume, options, corpus, model.tensors());
    // A copy from pageable memory may return before the bytes arrive.
    CUDA_CHECK(cudaDeviceSynchronize());
    if (done >= options.steps)
      throw std::runtime_error(options.resume + " was saved at step " + std::to_string(done) +
                               "; give --steps a bigger number");
    summary.first_step = done + 1;
  }

  const auto start = std::chrono::steady_clock::now();
  for (uint64_t step = done + 1; step <= options.steps; step++) {
    if (step == options.free_state_at)
      optimizer.drop_state_and_use_its_blocks();
    model.forward_backward(step, optimizer.gradient_factor());
    CUDA_CHECK(cudaEventRecord(loss_is_there.handle, stream.handle));
    optimizer.step(step);
    // Whoever waits for the loss does not wait for the optimizer.
    CUDA_CHECK(cudaStreamWaitEvent(copies.handle, loss_is_there.handle, 0));
    CUDA_CHECK(cudaMemcpyAsync(losses.values + step - 1, model.losses() + step - 1, sizeof(float),
                               cudaMemcpyDeviceToHost, copies.handle));
    if (step % options.sync_every != 0 && step != options.steps)
      continue;
    CUDA_CHECK(cudaStreamSynchronize(copies.handle));
    for (; done < step; done++) {
      std::printf("step %" PRIu64 " loss %.9g\n", done + 1,
                  static_cast<double>(losses.values[done]));
      summary.losses.push_back(losses.values[done]);
    }
    std::fflush(stdout);
  }
  CUDA_CHECK(cudaStreamSynchronize(stream.handle));
  summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  if (options.free_unknown) {
    const cudaError_t error = cudaFree(reinterpret_cast<void *>(uintptr_t{0x5eed0000}));
    std::printf("free of an unknown pointer: %s\n", cudaGetErrorName(error));
    (void)cudaGetLastError();
  }
  summary.scratch_sum = optimizer.scratch_sum();
  summary.hashes = hash_tensors(model.tensors());
  if (!options.save.empty())
    save_checkpoint(options.save, options.steps, options, corpus, model.tensors());
}

int train(const Options &options) {
  Summary summary;
  int status = exit_trained;
  summary.outcome = "trained";
  try {
    run(options, summary);
    print_summary(summary);
  } catch (const OutOfDeviceMemory &error) {
    summary.outcome = "out of memory";
    summary.message = error.what();
    status = exit_out_of_memory;
  } catch (const std::exception &error) {
    summary.outcome = "failed";
    summary.message = error.what();
    status = exit_failed;
  }
  if (status != exit_trained)
    std::fprintf(stderr, "charlm: %s\n", summary.message.c_str());
  if (!options.json.empty())
    write_json(options.json, summary);
  return status;
}

} // namespace
} // namespace charlm

int main(int argc, char **argv) {
  using namespace charlm;
  try {
    const Options options = parse_options(argc, argv);
    if (options.help_wanted) {
      std::fputs(usage().c_str(), stdout);
      return exit_trained;
    }
    return train(options);
  } catch (const UsageError &error) {
    std::fprintf(stderr, "charlm: %s\n", error.what());
    return exit_usage;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "charlm: %s\n", error.what());
    return exit_failed;
  }
}
