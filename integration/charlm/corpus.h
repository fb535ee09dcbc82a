// The text to learn: read whole, its bytes numbered by the distinct bytes that occur.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace charlm {

struct Corpus {
  std::vector<uint8_t> classes; // one per byte of the text
  uint32_t vocabulary;          // distinct bytes
  uint64_t hash;                // of the text
};

// Throws std::runtime_error when the file can't be read or has no more than `context` bytes.
Corpus read_corpus(const std::string &path, uint64_t context);

constexpr uint64_t hash_start = 0xcbf29ce484222325u;

// FNV-1a, 64 bits; pass the last result as `hash` to go on.
uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count);

} // namespace charlm
