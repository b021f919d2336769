#pragma once

#include <string>

#include "absl/status/status.h"

namespace atelier {

// How a worker's TCP ports are guarded. All files are PEM but the tokens; each is read again when
// it changes, so that certificates and tokens rotate without a restart.
struct ServerSecurity {
  std::string certificate;  // of this worker, then those between it and its CA; empty = plaintext
  std::string private_key;
  std::string client_ca;   // clients must show a certificate that one of these signed; empty = none
  std::string token_file;  // calls must bring one of its lines as "authorization: Bearer LINE"

  bool has_tls() const { return !certificate.empty(); }
};

// How a client reaches workers over TCP. Unix sockets are guarded by their permissions and never
// speak TLS.
struct ClientSecurity {
  std::string ca;           // signed the workers' certificates; empty = plaintext
  std::string certificate;  // shown to workers that ask for one; empty = none
  std::string private_key;
  std::string server_name;  // looked for in certificates instead of the address's host
  std::string token_file;   // its only line goes with every call

  bool has_tls() const { return !ca.empty(); }
};

// Reads all files, since what is wrong with one would otherwise only show as peers that cannot
// connect. INVALID_ARGUMENT, NOT_FOUND or PERMISSION_DENIED names the file and what is wrong: no
// PEM, a key with a password or of another certificate, a certificate outside its days, no token or
// one too many.
absl::Status CheckFiles(const ServerSecurity& security);
absl::Status CheckFiles(const ClientSecurity& security);

}  // namespace atelier
