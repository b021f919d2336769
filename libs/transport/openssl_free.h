#pragma once

namespace atelier {

// The deleter of an OpenSSL object: std::unique_ptr<X509, Free<X509_free>>.
template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};

}  // namespace atelier
