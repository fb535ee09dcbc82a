// Reading a text file; see corpus.h.
#include "corpus.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace charlm {

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
  const auto *byte = static_cast<const unsigned char *>(bytes);
  for (size_t i = 0; i < count; i++)
    hash = (hash ^ byte[i]) * 0x100000001b3u;
  return hash;
}

Corpus read_corpus(const std::string &path, uint64_t context) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw std::runtime_error("can't open " + path + ": " + std::strerror(errno));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad())
    throw std::runtime_error("can't read " + path + ": " + std::strerror(errno));
  if (text.size() <= context)
    throw std::runtime_error(path + " has " + std::to_string(text.size()) +
                             " bytes; the model needs more than " + std::to_string(context));
  bool occurs[256] = {};
  for (const char c : text)
    occurs[static_cast<unsigned char>(c)] = true;
  uint8_t class_of[256] = {};
  uint32_t vocabulary = 0;
  for (int byte = 0; byte < 256; byte++)
    if (occurs[byte])
      class_of[byte] = static_cast<uint8_t>(vocabulary++);
  Corpus corpus{{}, vocabulary, hash_bytes(hash_start, text.data(), text.size())};
  corpus.classes.reserve(text.size());
  for (const char c : text)
    corpus.classes.push_back(class_of[static_cast<unsigned char>(c)]);
  return corpus;
}

} // namespace charlm
