#include "libs/transport/security.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/transport/openssl_free.h"
#include "libs/transport/small_file.h"
#include "libs/transport/tls_files.h"
#include "libs/transport/token_file.h"

namespace atelier {
namespace {

using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

absl::Status Invalid(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Nobody is there to type it.
int NoPassword(char*, int, int, void*) { return 0; }

Bio TextBio(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::StatusOr<Certificate> ParseCertificate(const std::string& path, const std::string& text) {
  Certificate certificate(PEM_read_bio_X509(TextBio(text).get(), nullptr, NoPassword, nullptr));
  if (certificate == nullptr) {
    return Invalid(path, "holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)");
  }
  return certificate;
}

absl::StatusOr<PrivateKey> ParsePrivateKey(const std::string& path, const std::string& text) {
  PrivateKey key(PEM_read_bio_PrivateKey(TextBio(text).get(), nullptr, NoPassword, nullptr));
  if (key != nullptr) return key;
  return Invalid(
      path, "holds no private key in PEM form without a password (-----BEGIN PRIVATE KEY-----)");
}

std::string Day(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(bio.get(), time);
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::Status CheckDays(const std::string& path, const X509& certificate) {
  const ASN1_TIME* begin = X509_get0_notBefore(&certificate);
  const ASN1_TIME* end = X509_get0_notAfter(&certificate);
  if (X509_cmp_current_time(begin) > 0) {
    return Invalid(path, absl::StrCat("the certificate is valid from ", Day(begin), " on only"));
  }
  if (X509_cmp_current_time(end) < 0) {
    return Invalid(path, absl::StrCat("the certificate expired on ", Day(end)));
  }
  return absl::OkStatus();
}

absl::Status CheckKeyPair(const TlsParts& paths, const TlsParts& texts) {
  ATELIER_ASSIGN_OR_RETURN(const Certificate own,
                           ParseCertificate(paths.certificate, texts.certificate));
  ATELIER_ASSIGN_OR_RETURN(const PrivateKey key,
                           ParsePrivateKey(paths.private_key, texts.private_key));
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    return Invalid(paths.private_key, absl::StrCat("is not the key of ", paths.certificate));
  }
  return CheckDays(paths.certificate, *own);
}

}  // namespace

absl::StatusOr<TlsParts> ReadTlsParts(const TlsParts& paths) {
  TlsParts texts;
  if (!paths.certificate.empty()) {
    ATELIER_ASSIGN_OR_RETURN(texts.certificate, ReadSmallFile(paths.certificate));
    ATELIER_ASSIGN_OR_RETURN(texts.private_key, ReadSmallFile(paths.private_key));
    ATELIER_RETURN_IF_ERROR(CheckKeyPair(paths, texts));
  }
  if (!paths.ca.empty()) {
    ATELIER_ASSIGN_OR_RETURN(texts.ca, ReadSmallFile(paths.ca));
    ATELIER_RETURN_IF_ERROR(ParseCertificate(paths.ca, texts.ca).status());
  }
  return texts;
}

absl::Status CheckFiles(const ServerSecurity& security) {
  if (!security.has_tls()) return absl::OkStatus();
  ATELIER_RETURN_IF_ERROR(ReadTlsParts(PathsOf(security)).status());
  if (security.token_file.empty()) return absl::OkStatus();
  return ReadTokens(security.token_file).status();
}

absl::Status CheckFiles(const ClientSecurity& security) {
  if (!security.has_tls()) return absl::OkStatus();
  ATELIER_RETURN_IF_ERROR(ReadTlsParts(PathsOf(security)).status());
  if (security.token_file.empty()) return absl::OkStatus();
  ATELIER_ASSIGN_OR_RETURN(const std::vector<std::string> tokens, ReadTokens(security.token_file));
  if (tokens.size() == 1) return absl::OkStatus();
  return Invalid(security.token_file,
                 absl::StrCat("holds ", tokens.size(), " tokens; a client brings one"));
}

}  // namespace atelier
