#pragma once

#include <cstdio>
#include <cstdlib>

// Invariants of ours. A failed check prints file, line and condition and aborts the process: never
// use one on input.

#define ATELIER_CHECK(condition)                                                         \
  do {                                                                                   \
    if (__builtin_expect(!(condition), 0)) {                                             \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

// Compiled out where NDEBUG is set; for checks on hot paths.
#ifdef NDEBUG
#define ATELIER_DCHECK(condition) \
  do {                            \
    (void)sizeof(condition);      \
  } while (false)
#else
#define ATELIER_DCHECK(condition) ATELIER_CHECK(condition)
#endif
