// A caching device allocator with the policy of PyTorch's: requests are rounded to 512 bytes; up to
// 1 MiB they are cut from segments of 2 MiB, below 10 MiB from segments of 20 MiB, larger ones get
// a segment of their own rounded to 2 MiB. A segment is one cudaMalloc.
//
//   segment  [ block | block (free) | block ]   blocks of a segment are linked in address order;
//                                               two neighbours are never both free
//
// Free blocks wait in one best-fit list per pool (small, large). One stream uses all memory, so a
// freed block may be handed out at once. Not for use by more than one thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace charlm {

struct OutOfDeviceMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a block holds: peaks are told apart by it.
enum class Purpose { lasting, activation };

class CachingAllocator {
public:
  // segment_scale divides all sizes but the 512 bytes: a power of two up to 2048.
  explicit CachingAllocator(size_t segment_scale);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator &) = delete;
  CachingAllocator &operator=(const CachingAllocator &) = delete;

  // At least one block of 512 bytes. On cudaErrorMemoryAllocation the wholly free segments go back
  // to the driver and the request is tried once more; then OutOfDeviceMemory names `what`.
  void *allocate(size_t bytes, Purpose purpose, const std::string &what);
  template <typename T>
  T *allocate_array(size_t elements, Purpose purpose, const std::string &what) {
    return static_cast<T *>(allocate(elements * sizeof(T), purpose, what));
  }

  // Neighbours, in this order, cut from one block of their whole size.
  std::vector<void *> allocate_adjacent(const std::vector<size_t> &bytes, Purpose purpose,
                                        const std::string &what);

  // A pointer that an allocate function returned, or null.
  void free(void *pointer);

  size_t reserved_bytes_peak() const; // segments
  size_t lasting_bytes_peak() const;  // blocks that are not activations
  size_t releases() const;            // segments given back to the driver under pressure

private:
  struct Block {
    size_t bytes;
    char *address;
    Block *previous, *next;
    bool is_free, is_small;
    Purpose purpose;
  };
  struct BySizeThenAddress {
    bool operator()(const Block *a, const Block *b) const;
  };
  using FreeList = std::set<Block *, BySizeThenAddress>;

  FreeList &list_of(const Block &block);
  Block *find_free(size_t bytes, bool is_small);
  Block *new_segment(size_t bytes, bool is_small, const std::string &what);
  void release_free_segments(FreeList &list);
  Block *obtain(size_t bytes, const std::string &what);
  void *hand_out(Block *block, Purpose purpose);
  Block *cut(Block *block, size_t bytes);
  void merge_with_next(Block *block);

  const size_t small_limit_, large_limit_, small_segment_, large_segment_, large_rounding_;
  FreeList free_small_, free_large_;
  std::unordered_map<void *, Block *> used_;
  size_t reserved_ = 0, reserved_peak_ = 0, in_use_ = 0, lasting_ = 0, lasting_peak_ = 0;
  size_t releases_ = 0;
};

} // namespace charlm
