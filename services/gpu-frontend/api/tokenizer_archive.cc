#include "services/gpu-frontend/api/tokenizer_archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "libs/base/check.h"
#include "libs/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace atelier {
namespace {

// What the gateway refuses.
constexpr size_t kMaxFiles = 50;
constexpr uintmax_t kMaxBytes = uintmax_t{200} << 20;
// A fixed time (1980-01-01, where zip's calendar starts), so that equal files give equal bytes.
constexpr time_t kEntryTime = 315532800;

constexpr std::array<absl::string_view, 11> kNames = {"tokenizer.json",
                                                      "tokenizer_config.json",
                                                      "config.json",
                                                      "generation_config.json",
                                                      "special_tokens_map.json",
                                                      "vocab.json",
                                                      "merges.txt",
                                                      "tokenizer.model",
                                                      "tiktoken.model",
                                                      "chat_template.json",
                                                      "preprocessor_config.json"};
constexpr std::array<absl::string_view, 3> kSuffixes = {".tiktoken", ".jinja", ".model"};

bool IsTokenizerFile(absl::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [name](absl::string_view suffix) { return absl::EndsWith(name, suffix); });
}

bool HoldsVocabulary(const std::set<std::string>& names) {
  return names.contains("tokenizer.json") ||
         (names.contains("vocab.json") && names.contains("merges.txt")) ||
         std::any_of(names.begin(), names.end(), [](const std::string& name) {
           return absl::EndsWith(name, ".tiktoken") || name == "tiktoken.model";
         });
}

absl::Status CheckSize(size_t num_files, uintmax_t bytes, const std::string& origin) {
  if (num_files <= kMaxFiles && bytes <= kMaxBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "tokenizer files in ", origin, ": ", num_files, " files of ", bytes,
      " bytes exceed what the gateway accepts (", kMaxFiles, " files, ", kMaxBytes, " bytes)"));
}

absl::StatusOr<std::set<std::string>> FindFiles(const std::string& directory) {
  std::set<std::string> names;
  std::error_code error;
  uintmax_t bytes = 0;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (!IsTokenizerFile(name) || !it->is_regular_file(ignored)) continue;
    bytes += it->file_size(ignored);
    names.insert(name);
  }
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("tokenizer directory ", directory, ": ", error.message()));
  }
  if (!HoldsVocabulary(names)) {
    return absl::NotFoundError(absl::StrCat(
        directory, " holds no tokenizer.json, no vocab.json with merges.txt and no *.tiktoken"));
  }
  // Before any of them is read.
  ATELIER_RETURN_IF_ERROR(CheckSize(names.size(), bytes, directory));
  return names;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat("cannot read tokenizer file ", path));
  }
  return content;
}

// A file that was cut short, or is another's, would be noticed by the gateway only, at its first
// request.
absl::Status CheckJson(const std::string& path, const std::string& content) {
  if (!absl::EndsWith(path, ".json")) return absl::OkStatus();
  using nlohmann::json;
  bool has_model = false;
  // Keeps nothing of what is inside: a vocabulary would take some ten times its file.
  const auto look = [&has_model](int depth, json::parse_event_t event, json& parsed) {
    has_model |= depth == 1 && event == json::parse_event_t::key && parsed == "model";
    return depth == 0;
  };
  if (json::parse(content, look, /*allow_exceptions=*/false).is_discarded()) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", content.size(), " bytes that are no JSON; copy the file again"));
  }
  if (absl::EndsWith(path, "/tokenizer.json") && !has_model) {
    return absl::DataLossError(
        absl::StrCat(path, ": has no \"model\", so it is no tokenizer; copy the file again"));
  }
  return absl::OkStatus();
}

std::string Sha256Hex(absl::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  ATELIER_CHECK(
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

la_ssize_t AppendToString(archive* /*writer*/, void* target, const void* data, size_t size) {
  static_cast<std::string*>(target)->append(static_cast<const char*>(data), size);
  return static_cast<la_ssize_t>(size);
}

struct ArchiveDeleter {
  void operator()(archive* writer) const { archive_write_free(writer); }
};
struct EntryDeleter {
  void operator()(archive_entry* entry) const { archive_entry_free(entry); }
};

absl::Status ArchiveError(archive* writer, absl::string_view name) {
  return absl::InternalError(
      absl::StrCat("packing ", name, " for GetTokenizer: ", archive_error_string(writer)));
}

absl::Status AddEntry(archive* writer, const std::string& name, const std::string& content) {
  const std::unique_ptr<archive_entry, EntryDeleter> entry(archive_entry_new());
  archive_entry_set_pathname(entry.get(), name.c_str());
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(content.size()));
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0644);
  archive_entry_set_mtime(entry.get(), kEntryTime, 0);
  if (archive_write_header(writer, entry.get()) != ARCHIVE_OK ||
      archive_write_data(writer, content.data(), content.size()) !=
          static_cast<la_ssize_t>(content.size())) {
    return ArchiveError(writer, name);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Zip(const std::map<std::string, std::string>& files) {
  std::string zip;
  const std::unique_ptr<archive, ArchiveDeleter> writer(archive_write_new());
  if (archive_write_set_format_zip(writer.get()) != ARCHIVE_OK ||
      archive_write_zip_set_compression_store(writer.get()) != ARCHIVE_OK ||
      archive_write_set_bytes_in_last_block(writer.get(), 1) != ARCHIVE_OK ||
      archive_write_open(writer.get(), &zip, nullptr, AppendToString, nullptr) != ARCHIVE_OK) {
    return ArchiveError(writer.get(), "the zip");
  }
  for (const auto& [name, content] : files) {
    ATELIER_RETURN_IF_ERROR(AddEntry(writer.get(), name, content));
  }
  if (archive_write_close(writer.get()) != ARCHIVE_OK) return ArchiveError(writer.get(), "the zip");
  return zip;
}

}  // namespace

absl::StatusOr<TokenizerArchive> PackTokenizer(const std::string& directory) {
  ATELIER_ASSIGN_OR_RETURN(const std::set<std::string> names, FindFiles(directory));
  std::map<std::string, std::string> files;
  for (const std::string& name : names) {
    ATELIER_ASSIGN_OR_RETURN(files[name], ReadFile(directory + "/" + name));
    ATELIER_RETURN_IF_ERROR(CheckJson(directory + "/" + name, files[name]));
  }
  return PackTokenizerFiles(files, directory);
}

absl::StatusOr<TokenizerArchive> PackTokenizerFiles(const std::map<std::string, std::string>& files,
                                                    const std::string& origin) {
  uintmax_t bytes = 0;
  for (const auto& [name, content] : files) bytes += content.size();
  ATELIER_RETURN_IF_ERROR(CheckSize(files.size(), bytes, origin));
  TokenizerArchive archive;
  ATELIER_ASSIGN_OR_RETURN(archive.zip, Zip(files));
  archive.sha256 = Sha256Hex(archive.zip);
  return archive;
}

}  // namespace atelier
