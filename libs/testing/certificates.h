#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace atelier::testing {

struct CertificateFiles {
  std::string certificate, private_key;  // paths
};

// Signs certificates for tests, with P-256 keys; each one made is a CA of its own.
class CertificateAuthority {
 public:
  // Writes its own certificate to `path`.
  explicit CertificateAuthority(const std::string& path);
  ~CertificateAuthority();

  const std::string& path() const { return path_; }
  // `subject` in the form of X509v3 subjectAltName, "IP:127.0.0.1" or "DNS:worker-0". Writes
  // PREFIX.crt and PREFIX.key by renaming, as rotation has to.
  CertificateFiles Issue(const std::string& prefix, const std::string& subject,
                         absl::Duration begin = -absl::Hours(1),
                         absl::Duration end = absl::Hours(24)) const;

 private:
  struct Keys;
  const std::string path_;
  const std::unique_ptr<Keys> keys_;
};

}  // namespace atelier::testing
