#include "services/gpu-frontend/engine/kv_block_manager.h"

#include <algorithm>
#include <iterator>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "libs/base/check.h"
#include "libs/base/checked_math.h"

namespace atelier {

size_t KvBlockManager::KeyHash::operator()(const KeyView& key) const {
  return absl::HashOf(key.parent, key.tokens);
}

KvBlockManager::KvBlockManager(int num_blocks, int block_size, bool prefix_cache)
    : block_size_(block_size),
      prefix_cache_(prefix_cache),
      blocks_(static_cast<size_t>(num_blocks)) {
  ATELIER_CHECK(num_blocks > 0 && block_size > 0);
  free_.reserve(blocks_.size());
  for (int32_t id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

uint64_t KvBlockManager::NumberAfter(const KvBlockTable& table, int num_leading) const {
  if (num_leading == 0) return 0;
  return block(table.blocks[static_cast<size_t>(num_leading - 1)]).number;
}

int32_t KvBlockManager::Find(uint64_t parent, absl::Span<const int32_t> tokens) const {
  const auto it = index_.find(KeyView{parent, tokens});
  return it == index_.end() ? -1 : it->second;
}

void KvBlockManager::Reference(int32_t id) {
  Block& b = block(id);
  if (b.refs == 0 && b.key != nullptr) unused_.erase(b.unused);
  ++b.refs;
}

void KvBlockManager::Unreference(int32_t id) {
  Block& b = block(id);
  ATELIER_CHECK(b.refs > 0);
  if (--b.refs > 0) return;
  if (b.key == nullptr) {
    free_.push_back(id);
  } else {
    b.unused = unused_.insert(unused_.end(), id);
  }
}

void KvBlockManager::Evict(int32_t id) {
  Block& b = block(id);
  ATELIER_CHECK(b.refs == 0 && b.key != nullptr);
  unused_.erase(b.unused);
  index_.erase(index_.find(*b.key));
  b.key = nullptr;
  b.number = 0;
  free_.push_back(id);
}

int32_t KvBlockManager::TakeFree() {
  if (free_.empty()) Evict(unused_.front());
  const int32_t id = free_.back();
  free_.pop_back();
  return id;
}

int KvBlockManager::CountCached(absl::Span<const int32_t> tokens, int max_tokens) const {
  const int limit = std::min(max_tokens, static_cast<int>(tokens.size()));
  uint64_t parent = 0;
  int cached = 0;
  while (cached + block_size_ <= limit) {
    const int32_t id =
        Find(parent, tokens.subspan(static_cast<size_t>(cached), static_cast<size_t>(block_size_)));
    if (id < 0) break;
    parent = block(id).number;
    cached += block_size_;
  }
  return cached;
}

int KvBlockManager::Attach(absl::Span<const int32_t> tokens, int max_tokens, KvBlockTable& table) {
  ATELIER_CHECK(table.blocks.empty());
  const int num_shared = CountCached(tokens, max_tokens) / block_size_;
  uint64_t parent = 0;
  for (int i = 0; i < num_shared; ++i) {
    const int32_t id = Find(parent, tokens.subspan(static_cast<size_t>(i * block_size_),
                                                   static_cast<size_t>(block_size_)));
    parent = block(id).number;
    Reference(id);
    table.blocks.push_back(id);
  }
  table.num_committed = num_shared;
  return num_shared * block_size_;
}

void KvBlockManager::Fork(const KvBlockTable& donor, int num_shared, KvBlockTable& table) {
  ATELIER_CHECK(table.blocks.empty() && num_shared >= 0 &&
                num_shared <= static_cast<int>(donor.blocks.size()));
  table.blocks.assign(donor.blocks.begin(), donor.blocks.begin() + num_shared);
  table.num_committed = std::min(num_shared, donor.num_committed);
  for (const int32_t id : table.blocks) Reference(id);
}

int KvBlockManager::Missing(const KvBlockTable& table, int num_tokens) const {
  return std::max(0, CeilDiv(num_tokens, block_size_) - static_cast<int>(table.blocks.size()));
}

bool KvBlockManager::Grow(int num_tokens, KvBlockTable& table) {
  const int missing = Missing(table, num_tokens);
  if (missing > available_blocks()) return false;
  for (int i = 0; i < missing; ++i) {
    const int32_t id = TakeFree();
    Reference(id);
    table.blocks.push_back(id);
  }
  return true;
}

void KvBlockManager::Commit(absl::Span<const int32_t> tokens, int num_computed,
                            KvBlockTable& table) {
  if (!prefix_cache_) return;
  while ((table.num_committed + 1) * block_size_ <= num_computed) {
    const int i = table.num_committed++;
    const absl::Span<const int32_t> contents =
        tokens.subspan(static_cast<size_t>(i * block_size_), static_cast<size_t>(block_size_));
    const uint64_t parent = NumberAfter(table, i);
    int32_t& own = table.blocks[static_cast<size_t>(i)];
    if (const int32_t equal = Find(parent, contents); equal >= 0) {
      // Keeping the twin would leave the chain behind it with a parent that may be evicted.
      Reference(equal);
      Unreference(own);
      own = equal;
      continue;
    }
    const auto entry = index_.emplace(Key{parent, {contents.begin(), contents.end()}}, own).first;
    block(own).key = &entry->first;
    block(own).number = next_number_++;
  }
}

void KvBlockManager::Release(KvBlockTable& table) {
  // Last block first, so that of one chain the end is evicted before what it hangs on.
  for (auto it = table.blocks.rbegin(); it != table.blocks.rend(); ++it) Unreference(*it);
  table.blocks.clear();
  table.num_committed = 0;
}

void KvBlockManager::FlushCache() {
  while (!unused_.empty()) Evict(unused_.front());
}

absl::Status KvBlockManager::CheckBlock(int32_t id, const Books& books) const {
  const Block& b = block(id);
  const size_t i = static_cast<size_t>(id);
  const auto wrong = [id](absl::string_view what) {
    return absl::InternalError(absl::StrCat("block ", id, ": ", what));
  };
  if (b.refs != books.refs[i]) {
    return wrong(absl::StrCat("refs=", b.refs, ", tables hold it ", books.refs[i], " times"));
  }
  if (books.is_free[i] != (b.refs == 0 && b.key == nullptr)) return wrong("free list disagrees");
  if (books.is_unused[i] != (b.refs == 0 && b.key != nullptr)) return wrong("LRU list disagrees");
  if ((b.key == nullptr) != (b.number == 0)) return wrong("number without contents");
  if (b.key == nullptr) return absl::OkStatus();
  const auto entry = index_.find(*b.key);
  if (entry == index_.end() || entry->second != id) return wrong("index disagrees");
  if (b.key->parent != 0 && !books.numbers.contains(b.key->parent)) return wrong("parent is gone");
  if (static_cast<int>(b.key->tokens.size()) != block_size_) return wrong("cached but not full");
  return absl::OkStatus();
}

absl::Status KvBlockManager::CheckInvariants(absl::Span<const KvBlockTable* const> tables) const {
  const size_t size = blocks_.size();
  Books books{std::vector<int>(size), std::vector<bool>(size), std::vector<bool>(size), {}};
  for (const KvBlockTable* table : tables) {
    for (int i = 0; i < static_cast<int>(table->blocks.size()); ++i) {
      const int32_t id = table->blocks[static_cast<size_t>(i)];
      ++books.refs[static_cast<size_t>(id)];
      const bool committed = i < table->num_committed;
      if (committed != (block(id).key != nullptr)) {
        return absl::InternalError(absl::StrCat("block ", id, ": table and index disagree"));
      }
      if (committed && block(id).key->parent != NumberAfter(*table, i)) {
        return absl::InternalError(absl::StrCat("block ", id, ": follows another block"));
      }
    }
  }
  for (const int32_t id : free_) books.is_free[static_cast<size_t>(id)] = true;
  for (const int32_t id : unused_) books.is_unused[static_cast<size_t>(id)] = true;
  for (const Block& b : blocks_) {
    if (b.number != 0) books.numbers.insert(b.number);
  }
  if (books.numbers.size() != index_.size()) return absl::InternalError("index holds lost blocks");
  for (int32_t id = 0; id < num_blocks(); ++id) {
    if (absl::Status s = CheckBlock(id, books); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace atelier
