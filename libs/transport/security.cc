#include "libs/transport/security.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "libs/base/status_macros.h"
#include "libs/transport/openssl_free.h"
#include "libs/transport/small_file.h"
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

absl::StatusOr<Bio> OpenText(const std::string& path, std::string& text) {
  ATELIER_ASSIGN_OR_RETURN(text, ReadSmallFile(path));
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& path) {
  std::string text;
  ATELIER_ASSIGN_OR_RETURN(const Bio bio, OpenText(path, text));
  Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr));
  if (certificate == nullptr) {
    return Invalid(path, "holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)");
  }
  return certificate;
}

absl::StatusOr<PrivateKey> ReadPrivateKey(const std::string& path) {
  std::string text;
  ATELIER_ASSIGN_OR_RETURN(const Bio bio, OpenText(path, text));
  PrivateKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
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

absl::Status CheckKeyPair(const std::string& certificate, const std::string& private_key) {
  ATELIER_ASSIGN_OR_RETURN(const Certificate own, ReadCertificate(certificate));
  ATELIER_ASSIGN_OR_RETURN(const PrivateKey key, ReadPrivateKey(private_key));
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    return Invalid(private_key, absl::StrCat("is not the key of ", certificate));
  }
  return CheckDays(certificate, *own);
}

}  // namespace

absl::Status CheckFiles(const ServerSecurity& security) {
  if (!security.has_tls()) return absl::OkStatus();
  ATELIER_RETURN_IF_ERROR(CheckKeyPair(security.certificate, security.private_key));
  if (!security.client_ca.empty()) {
    ATELIER_RETURN_IF_ERROR(ReadCertificate(security.client_ca).status());
  }
  if (security.token_file.empty()) return absl::OkStatus();
  return ReadTokens(security.token_file).status();
}

absl::Status CheckFiles(const ClientSecurity& security) {
  if (!security.has_tls()) return absl::OkStatus();
  ATELIER_RETURN_IF_ERROR(ReadCertificate(security.ca).status());
  if (!security.certificate.empty()) {
    ATELIER_RETURN_IF_ERROR(CheckKeyPair(security.certificate, security.private_key));
  }
  if (security.token_file.empty()) return absl::OkStatus();
  ATELIER_ASSIGN_OR_RETURN(const std::vector<std::string> tokens, ReadTokens(security.token_file));
  if (tokens.size() == 1) return absl::OkStatus();
  return Invalid(security.token_file,
                 absl::StrCat("holds ", tokens.size(), " tokens; a client brings one"));
}

}  // namespace atelier
