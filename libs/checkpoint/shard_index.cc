#include "libs/checkpoint/shard_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/checkpoint/json_stream.h"
#include "libs/checkpoint/quoted_name.h"
#include "libs/checkpoint/safetensors_header.h"

namespace atelier {
namespace {

// Each file is a mapping, of which a process may have about 65000.
constexpr size_t kMaxFiles = 10000;

bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, '\\') && !absl::StrContains(name, '\0');
}

// {"weight_map": {"tensor": "file", …}, …}; what other keys hold is skipped.
class IndexReceiver final : public JsonReceiver {
 public:
  using JsonReceiver::JsonReceiver;

  bool found_map() const { return found_map_; }
  absl::flat_hash_map<std::string, std::string> TakeMap() { return std::move(file_of_); }

  bool null() override { return in_map_ ? JsonReceiver::null() : Skip(); }
  bool boolean(bool value) override { return in_map_ ? JsonReceiver::boolean(value) : Skip(); }
  bool number_integer(int64_t value) override {
    return in_map_ ? JsonReceiver::number_integer(value) : Skip();
  }
  bool number_unsigned(uint64_t value) override {
    return in_map_ ? JsonReceiver::number_unsigned(value) : Skip();
  }
  bool number_float(double value, const std::string& text) override {
    return in_map_ ? JsonReceiver::number_float(value, text) : Skip();
  }
  bool start_array(size_t size) override {
    if (in_map_ || depth_ == 0) return JsonReceiver::start_array(size);
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool start_object(size_t size) override {
    if (in_map_ && depth_ > 1) return JsonReceiver::start_object(size);
    ++depth_;
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      tensor_.clear();
      return !in_map_ || !std::exchange(found_map_, true) || Fail("weight_map occurs twice");
    }
    if (in_map_) tensor_ = name;
    return true;
  }
  bool string(std::string& value) override {
    if (!in_map_) return Skip();
    if (depth_ == 1) return JsonReceiver::string(value);
    if (tensor_.empty() || tensor_.size() > kMaxNameBytes) {
      return Fail(absl::StrCat("a name must have from 1 to ", kMaxNameBytes, " bytes"));
    }
    if (!IsPlainName(value)) {
      return Fail(absl::StrCat("file ", QuotedName(value), " must be a name without folders"));
    }
    if (file_of_.size() == kMaxTensors)
      return Fail(absl::StrCat("more than ", kMaxTensors, " tensors"));
    return file_of_.try_emplace(tensor_, value).second || Fail("listed twice");
  }
  bool end_object() override {
    --depth_;
    return true;
  }

 protected:
  std::string Place() const override {
    return in_map_ ? absl::StrCat("weight_map: tensor ", QuotedName(tensor_)) : "";
  }

 private:
  bool Skip() { return depth_ > 0 || Unexpected("a value that is no object"); }

  int depth_ = 0;
  bool in_map_ = false;  // the value of weight_map is being read
  bool found_map_ = false;
  std::string tensor_;
  absl::flat_hash_map<std::string, std::string> file_of_;
};

}  // namespace

absl::StatusOr<ShardIndex> ParseShardIndex(absl::string_view text, absl::string_view file) {
  constexpr JsonLimits kLimits{.max_depth = 16, .max_token_bytes = size_t{1} << 20};
  IndexReceiver receiver(file);
  ATELIER_RETURN_IF_ERROR(ReadJson(text, kLimits, receiver));
  if (!receiver.found_map()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": weight_map is missing"));
  }
  ShardIndex index;
  index.file_of = receiver.TakeMap();
  for (const auto& [tensor, shard] : index.file_of) index.files.push_back(shard);
  std::sort(index.files.begin(), index.files.end());
  index.files.erase(std::unique(index.files.begin(), index.files.end()), index.files.end());
  if (index.files.size() > kMaxFiles) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", index.files.size(), " files are more than ", kMaxFiles));
  }
  return index;
}

}  // namespace atelier
