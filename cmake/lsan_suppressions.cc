// Linked into every program of the asan preset. What libraries leave behind, by the functions that
// the sanitizer sees of it:
// - a thread of oneTBB keeps the record of the last observer that it served until it serves another
//   one: when the process ends first, only the library can reach it;
// - gRPC 1.51 loses a list of slices (576 bytes) at each end of a TLS connection.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:tbb::detail::r1::observe\nleak:gpr_realloc\n";
}
