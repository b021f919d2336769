#include "libs/testing/certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdio>

#include "libs/base/check.h"
#include "libs/transport/openssl_free.h"

namespace atelier::testing {
namespace {

using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using File = std::unique_ptr<FILE, Free<std::fclose>>;

PrivateKey NewKey() { return PrivateKey(EVP_EC_gen("P-256")); }

void AddExtension(X509& certificate, int id, const std::string& value) {
  const std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, nullptr, id, value.c_str()));
  ATELIER_CHECK(extension != nullptr);
  ATELIER_CHECK(X509_add_ext(&certificate, extension.get(), -1) == 1);
}

Certificate NewCertificate(EVP_PKEY& key, const char* name, absl::Duration begin,
                           absl::Duration end) {
  static std::atomic<long> serial{1};
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), absl::ToInt64Seconds(begin));
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), absl::ToInt64Seconds(end));
  X509_set_pubkey(certificate.get(), &key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  return certificate;
}

template <typename Write>
void WriteFile(const std::string& path, Write&& write) {
  const std::string made = path + ".new";
  {
    const File file(std::fopen(made.c_str(), "w"));
    ATELIER_CHECK(file != nullptr);
    ATELIER_CHECK(write(file.get()) == 1);
  }
  ATELIER_CHECK(std::rename(made.c_str(), path.c_str()) == 0);
}

}  // namespace

struct CertificateAuthority::Keys {
  explicit Keys(const std::string& name)
      : certificate(NewCertificate(*key, name.c_str(), -absl::Hours(2), absl::Hours(48))) {}

  PrivateKey key = NewKey();
  Certificate certificate;
};

CertificateAuthority::CertificateAuthority(const std::string& path)
    : path_(path), keys_(std::make_unique<Keys>(path.substr(path.rfind('/') + 1))) {
  X509& own = *keys_->certificate;
  X509_set_issuer_name(&own, X509_get_subject_name(&own));
  AddExtension(own, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(own, NID_key_usage, "critical,keyCertSign");
  ATELIER_CHECK(X509_sign(&own, keys_->key.get(), EVP_sha256()) > 0);
  WriteFile(path, [&](FILE* file) { return PEM_write_X509(file, &own); });
}

CertificateAuthority::~CertificateAuthority() = default;

CertificateFiles CertificateAuthority::Issue(const std::string& prefix, const std::string& subject,
                                             absl::Duration begin, absl::Duration end) const {
  const PrivateKey key = NewKey();
  const Certificate certificate = NewCertificate(*key, "a peer of the tests", begin, end);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(keys_->certificate.get()));
  AddExtension(*certificate, NID_subject_alt_name, subject);
  ATELIER_CHECK(X509_sign(certificate.get(), keys_->key.get(), EVP_sha256()) > 0);
  const CertificateFiles files{prefix + ".crt", prefix + ".key"};
  WriteFile(files.certificate, [&](FILE* file) { return PEM_write_X509(file, certificate.get()); });
  WriteFile(files.private_key, [&](FILE* file) {
    return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return files;
}

}  // namespace atelier::testing
