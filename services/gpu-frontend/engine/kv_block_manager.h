#pragma once

#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace atelier {

// One sequence's blocks: position p lives in blocks[p / block_size]. Filled and emptied only by
// KvBlockManager; empty before it is attached and after it is released.
struct KvBlockTable {
  std::vector<int32_t> blocks;
  int num_committed = 0;  // leading blocks that the prefix index knows; nobody writes them again
};

// Who owns which of a fixed number of KV blocks. Blocks are reference counted, so sequences with an
// equal prefix share its full blocks without a copy; a block that is not full belongs to one
// sequence. With the prefix cache on, full blocks whose contents are computed are found again by
// their tokens and by the chain of blocks before them (the tokens themselves are compared, a hash
// only finds the candidates); unreferenced ones stay until room is needed, the least recently used
// going first. Not thread-safe; no call blocks; costs are linear in the blocks named.
class KvBlockManager {
 public:
  KvBlockManager(int num_blocks, int block_size, bool prefix_cache);
  KvBlockManager(const KvBlockManager&) = delete;
  KvBlockManager& operator=(const KvBlockManager&) = delete;

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int block_size() const { return block_size_; }
  int used_blocks() const { return num_blocks() - available_blocks(); }  // referenced ones
  int available_blocks() const { return static_cast<int>(free_.size() + unused_.size()); }
  int cached_blocks() const { return static_cast<int>(index_.size()); }

  // Shares the longest cached run of full blocks that holds a prefix of `tokens` of at most
  // `max_tokens`; returns its length in tokens. REQUIRES: `table` is empty.
  int Attach(absl::Span<const int32_t> tokens, int max_tokens, KvBlockTable& table);
  // As Attach, but only counts.
  int CountCached(absl::Span<const int32_t> tokens, int max_tokens) const;
  // Shares the first `num_shared` blocks of `donor`, which must be full and computed.
  // REQUIRES: `table` is empty.
  void Fork(const KvBlockTable& donor, int num_shared, KvBlockTable& table);
  // Blocks that `table` lacks to hold `num_tokens`.
  int Missing(const KvBlockTable& table, int num_tokens) const;
  // Extends `table` to hold `num_tokens`; false, and nothing changed, when blocks are short.
  bool Grow(int num_tokens, KvBlockTable& table);
  // Tells that the first `num_computed` of `tokens` are computed: their full blocks enter the
  // index. Where an equal block is there already, the table takes that one and gives its own back.
  void Commit(absl::Span<const int32_t> tokens, int num_computed, KvBlockTable& table);
  void Release(KvBlockTable& table);
  // Forgets every unreferenced cached block.
  void FlushCache();

  // INTERNAL unless `tables`, all there are, and the books agree; for tests.
  absl::Status CheckInvariants(absl::Span<const KvBlockTable* const> tables) const;

 private:
  // Contents of a full block: its tokens and, by number, the block before it. Numbers are never
  // used twice, so an equal key means an equal prefix from position 0 on.
  struct Key {
    uint64_t parent = 0;  // 0 = the block is the first
    std::vector<int32_t> tokens;
  };
  struct KeyView {
    uint64_t parent;
    absl::Span<const int32_t> tokens;
  };
  struct KeyHash {
    using is_transparent = void;
    size_t operator()(const KeyView& key) const;
    size_t operator()(const Key& key) const { return (*this)(KeyView{key.parent, key.tokens}); }
  };
  struct KeyEqual {
    using is_transparent = void;
    static KeyView View(const Key& key) { return {key.parent, key.tokens}; }
    static KeyView View(const KeyView& key) { return key; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return View(a).parent == View(b).parent && View(a).tokens == View(b).tokens;
    }
  };
  struct Block {
    int refs = 0;
    uint64_t number = 0;                  // of its contents; 0 = not in the index
    const Key* key = nullptr;             // in index_; null = not in the index
    std::list<int32_t>::iterator unused;  // valid while refs == 0 and key != null
  };

  Block& block(int32_t id) { return blocks_[static_cast<size_t>(id)]; }
  const Block& block(int32_t id) const { return blocks_[static_cast<size_t>(id)]; }
  // The number of the contents that `num_leading` blocks of a table end with.
  uint64_t NumberAfter(const KvBlockTable& table, int num_leading) const;
  int32_t Find(uint64_t parent, absl::Span<const int32_t> tokens) const;  // -1 = not cached
  void Reference(int32_t id);
  void Unreference(int32_t id);
  int32_t TakeFree();
  void Evict(int32_t id);
  // What CheckBlock compares a block with, gathered from all others.
  struct Books {
    std::vector<int> refs;
    std::vector<bool> is_free;
    std::vector<bool> is_unused;
    absl::flat_hash_set<uint64_t> numbers;
  };
  absl::Status CheckBlock(int32_t id, const Books& books) const;

  const int block_size_;
  const bool prefix_cache_;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // neither referenced nor cached
  std::list<int32_t> unused_;  // cached, not referenced; least recently used first
  absl::node_hash_map<Key, int32_t, KeyHash, KeyEqual> index_;
  uint64_t next_number_ = 1;
};

}  // namespace atelier
