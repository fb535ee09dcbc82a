// Saving and loading parameters and optimizer state by ordinary copies. The file: a header, then
// for each tensor its element count, parameter, exp_avg, exp_avg_sq and step, in the machine's byte
// order.
#pragma once
#include "corpus.h"
#include "options.h"
#include "tensor.h"

#include <string>
#include <vector>

namespace charlm {

// Reads from the device; call after the stream is idle. Written beside `path` first, then renamed.
void save_checkpoint(const std::string &path, uint64_t step, const Options &options,
                     const Corpus &corpus, const std::vector<Tensor> &tensors);

// Fills tensors whose state exists already and returns the step of the file. Throws when the file
// belongs to another model, seed or text.
uint64_t load_checkpoint(const std::string &path, const Options &options, const Corpus &corpus,
                         std::vector<Tensor> &tensors);

} // namespace charlm
