// Linked into every program of the asan preset. A thread of oneTBB keeps the record of the last
// observer that it served until it serves another one: when the process ends first, the record,
// which the library alone can reach, counts as leaked.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:tbb::detail::r1::observe\n"; }
