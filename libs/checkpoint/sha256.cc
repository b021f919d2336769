#include "libs/checkpoint/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "libs/base/check.h"

namespace atelier {

struct Sha256::Context {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> evp{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

// The calls fail only for lack of memory or of the algorithm itself.
Sha256::Sha256() : context_(std::make_unique<Context>()) {
  ATELIER_CHECK(context_->evp != nullptr);
  ATELIER_CHECK(EVP_DigestInit_ex(context_->evp.get(), EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Add(absl::Span<const uint8_t> bytes) {
  ATELIER_CHECK(EVP_DigestUpdate(context_->evp.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  ATELIER_CHECK(EVP_DigestFinal_ex(context_->evp.get(), digest, &size) == 1);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

}  // namespace atelier
