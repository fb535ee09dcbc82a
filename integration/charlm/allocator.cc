// The caching allocator's policy; see allocator.h.
#include "allocator.h"

#include "cuda_check.h"

#include <algorithm>
#include <cstdio>
#include <functional>

namespace charlm {
namespace {

constexpr size_t block_rounding = 512;
constexpr size_t mebibyte = 1048576;

size_t round_up(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

size_t block_bytes(size_t requested_bytes) {
  return round_up(std::max<size_t>(requested_bytes, 1), block_rounding);
}

} // namespace

bool CachingAllocator::BySizeThenAddress::operator()(const Block *a, const Block *b) const {
  if (a->bytes != b->bytes)
    return a->bytes < b->bytes;
  return std::less<char *>()(a->address, b->address);
}

CachingAllocator::CachingAllocator(size_t segment_scale)
    : small_limit_(mebibyte / segment_scale), large_limit_(10 * mebibyte / segment_scale),
      small_segment_(2 * mebibyte / segment_scale), large_segment_(20 * mebibyte / segment_scale),
      large_rounding_(2 * mebibyte / segment_scale) {}

CachingAllocator::~CachingAllocator() {
  for (const auto &[pointer, block] : used_) {
    block->is_free = true;
    list_of(*block).insert(block);
  }
  for (FreeList *list : {&free_small_, &free_large_})
    for (Block *block : *list) {
      if (!block->previous)
        (void)cudaFree(block->address);
      delete block;
    }
}

CachingAllocator::FreeList &CachingAllocator::list_of(const Block &block) {
  return block.is_small ? free_small_ : free_large_;
}

CachingAllocator::Block *CachingAllocator::find_free(size_t bytes, bool is_small) {
  FreeList &list = is_small ? free_small_ : free_large_;
  Block key{bytes, nullptr, nullptr, nullptr, false, is_small, Purpose::lasting};
  const auto found = list.lower_bound(&key);
  if (found == list.end())
    return nullptr;
  Block *block = *found;
  list.erase(found);
  return block;
}

CachingAllocator::Block *CachingAllocator::new_segment(size_t bytes, bool is_small,
                                                       const std::string &what) {
  const size_t segment_bytes = is_small               ? small_segment_
                               : bytes < large_limit_ ? large_segment_
                                                      : round_up(bytes, large_rounding_);
  void *address = nullptr;
  cudaError_t error = cudaMalloc(&address, segment_bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    release_free_segments(free_small_);
    release_free_segments(free_large_);
    error = cudaMalloc(&address, segment_bytes);
  }
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    throw OutOfDeviceMemory(
        "out of device memory: " + what + " (" + std::to_string(bytes) +
        " bytes) needs a segment of " + std::to_string(segment_bytes) + " bytes; " +
        std::to_string(free_bytes) + " of " + std::to_string(total_bytes) +
        " bytes of the device are free; this program holds " + std::to_string(reserved_) +
        " bytes of segments, " + std::to_string(in_use_) + " bytes of them in use");
  }
  CUDA_CHECK(error);
  reserved_ += segment_bytes;
  reserved_peak_ = std::max(reserved_peak_, reserved_);
  return new Block{segment_bytes,   static_cast<char *>(address), nullptr, nullptr, false, is_small,
                   Purpose::lasting};
}

void CachingAllocator::release_free_segments(FreeList &list) {
  for (auto it = list.begin(); it != list.end();) {
    Block *block = *it;
    if (block->previous || block->next) {
      ++it;
      continue;
    }
    it = list.erase(it);
    CUDA_CHECK(cudaFree(block->address)); // waits for the work that uses it
    reserved_ -= block->bytes;
    releases_++;
    delete block;
  }
}

// Shortens the block and returns its rest, in no list.
CachingAllocator::Block *CachingAllocator::cut(Block *block, size_t bytes) {
  Block *rest = new Block{block->bytes - bytes, block->address + bytes, block, block->next, true,
                          block->is_small,      Purpose::lasting};
  if (rest->next)
    rest->next->previous = rest;
  block->next = rest;
  block->bytes = bytes;
  return rest;
}

void CachingAllocator::merge_with_next(Block *block) {
  Block *next = block->next;
  block->bytes += next->bytes;
  block->next = next->next;
  if (block->next)
    block->next->previous = block;
  delete next;
}

// A block of that size or, where the rest would be of no use, a larger one.
CachingAllocator::Block *CachingAllocator::obtain(size_t bytes, const std::string &what) {
  const bool is_small = bytes <= small_limit_;
  Block *block = find_free(bytes, is_small);
  if (!block)
    block = new_segment(bytes, is_small, what);
  const size_t rest = block->bytes - bytes;
  if (is_small ? rest >= block_rounding : rest > small_limit_)
    list_of(*block).insert(cut(block, bytes));
  return block;
}

void *CachingAllocator::hand_out(Block *block, Purpose purpose) {
  block->is_free = false;
  block->purpose = purpose;
  used_.emplace(block->address, block);
  in_use_ += block->bytes;
  if (purpose == Purpose::lasting)
    lasting_ += block->bytes;
  lasting_peak_ = std::max(lasting_peak_, lasting_);
  return block->address;
}

void *CachingAllocator::allocate(size_t bytes, Purpose purpose, const std::string &what) {
  return hand_out(obtain(block_bytes(bytes), what), purpose);
}

std::vector<void *> CachingAllocator::allocate_adjacent(const std::vector<size_t> &bytes,
                                                        Purpose purpose, const std::string &what) {
  size_t total = 0;
  for (const size_t part : bytes)
    total += block_bytes(part);
  std::vector<void *> result;
  Block *block = obtain(total, what);
  for (size_t i = 0; i < bytes.size(); i++) {
    Block *rest = i + 1 < bytes.size() ? cut(block, block_bytes(bytes[i])) : nullptr;
    result.push_back(hand_out(block, purpose));
    block = rest;
  }
  return result;
}

void CachingAllocator::free(void *pointer) {
  if (!pointer)
    return;
  const auto found = used_.find(pointer);
  if (found == used_.end())
    throw std::logic_error("the allocator was asked to free a pointer it did not hand out");
  Block *block = found->second;
  used_.erase(found);
  in_use_ -= block->bytes;
  if (block->purpose == Purpose::lasting)
    lasting_ -= block->bytes;
  block->is_free = true;
  if (block->next && block->next->is_free) {
    list_of(*block).erase(block->next);
    merge_with_next(block);
  }
  if (block->previous && block->previous->is_free) {
    block = block->previous;
    list_of(*block).erase(block);
    merge_with_next(block);
  }
  list_of(*block).insert(block);
}

size_t CachingAllocator::reserved_bytes_peak() const {
  return reserved_peak_;
}

size_t CachingAllocator::lasting_bytes_peak() const {
  return lasting_peak_;
}

size_t CachingAllocator::releases() const {
  return releases_;
}

} // namespace charlm
