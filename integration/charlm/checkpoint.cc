// The checkpoint file; see checkpoint.h.
#include "checkpoint.h"

#include "cuda_check.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace charlm {
namespace {

struct Header {
  char magic[8];
  uint64_t step, tensors, tables, rows, embedding, hidden, context, vocabulary, seed, text_hash;
};

Header make_header(uint64_t step, const Options &o, const Corpus &corpus, size_t tensors) {
  return {{'C', 'H', 'A', 'R', 'L', 'M', '0', '1'},
          step,
          tensors,
          o.tables,
          o.rows,
          o.embedding,
          o.hidden,
          o.context,
          corpus.vocabulary,
          o.seed,
          corpus.hash};
}

struct CloseFile {
  void operator()(std::FILE *file) const {
    std::fclose(file);
  }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

[[noreturn]] void fail(const std::string &what, const std::string &path) {
  throw std::runtime_error("can't " + what + " " + path + ": " + std::strerror(errno));
}

void write(const File &file, const std::string &path, const void *bytes, size_t count) {
  if (std::fwrite(bytes, 1, count, file.get()) != count)
    fail("write", path);
}

void read(const File &file, const std::string &path, void *bytes, size_t count) {
  if (std::fread(bytes, 1, count, file.get()) == count)
    return;
  if (std::ferror(file.get()))
    fail("read", path);
  throw std::runtime_error(path + " is cut short; it is no whole checkpoint");
}

} // namespace

void save_checkpoint(const std::string &path, uint64_t step, const Options &options,
                     const Corpus &corpus, const std::vector<Tensor> &tensors) {
  const std::string unfinished = path + ".unfinished";
  File file(std::fopen(unfinished.c_str(), "wb"));
  if (!file)
    fail("create", unfinished);
  const Header header = make_header(step, options, corpus, tensors.size());
  write(file, unfinished, &header, sizeof header);
  for (const Tensor &tensor : tensors) {
    std::vector<float> values(static_cast<size_t>(tensor.elements));
    write(file, unfinished, &tensor.elements, sizeof tensor.elements);
    for (const float *source : {tensor.parameter, tensor.exp_avg, tensor.exp_avg_sq}) {
      const size_t bytes = values.size() * sizeof(float);
      CUDA_CHECK(cudaMemcpy(values.data(), source, bytes, cudaMemcpyDeviceToHost));
      write(file, unfinished, values.data(), bytes);
    }
    float count = 0;
    CUDA_CHECK(cudaMemcpy(&count, tensor.step, sizeof count, cudaMemcpyDeviceToHost));
    write(file, unfinished, &count, sizeof count);
  }
  if (std::fclose(file.release()) != 0)
    fail("write", unfinished);
  if (std::rename(unfinished.c_str(), path.c_str()) != 0)
    fail("create", path);
}

uint64_t load_checkpoint(const std::string &path, const Options &options, const Corpus &corpus,
                         std::vector<Tensor> &tensors) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file)
    fail("open", path);
  Header header;
  read(file, path, &header, sizeof header);
  const Header wanted = make_header(header.step, options, corpus, tensors.size());
  if (std::memcmp(header.magic, wanted.magic, sizeof header.magic) != 0)
    throw std::runtime_error(path + " is no checkpoint of charlm");
  if (std::memcmp(&header, &wanted, sizeof header) != 0)
    throw std::runtime_error(path + " belongs to another model, seed or text; give the options and "
                                    "the text that it was saved with");
  for (Tensor &tensor : tensors) {
    int64_t elements = 0;
    read(file, path, &elements, sizeof elements);
    if (elements != tensor.elements)
      throw std::runtime_error(path + " is damaged: " + tensor.name + " has a wrong size");
    std::vector<float> values(static_cast<size_t>(elements));
    for (float *target : {tensor.parameter, tensor.exp_avg, tensor.exp_avg_sq}) {
      const size_t bytes = values.size() * sizeof(float);
      read(file, path, values.data(), bytes);
      CUDA_CHECK(cudaMemcpy(target, values.data(), bytes, cudaMemcpyHostToDevice));
    }
    float count = 0;
    read(file, path, &count, sizeof count);
    CUDA_CHECK(cudaMemcpy(tensor.step, &count, sizeof count, cudaMemcpyHostToDevice));
  }
  return header.step;
}

} // namespace charlm
