#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early returns for absl::Status and absl::StatusOr (Abseil 20220623 ships none).

#define ATELIER_RETURN_IF_ERROR(expr)                                                      \
  do {                                                                                     \
    if (absl::Status atelier_status = (expr); !atelier_status.ok()) return atelier_status; \
  } while (false)

#define ATELIER_ASSIGN_OR_RETURN(lhs, expr) \
  ATELIER_ASSIGN_OR_RETURN_IMPL(ATELIER_MACRO_JOIN(atelier_statusor_, __LINE__), lhs, expr)

#define ATELIER_MACRO_JOIN(a, b) ATELIER_MACRO_JOIN_IMPL(a, b)
#define ATELIER_MACRO_JOIN_IMPL(a, b) a##b
#define ATELIER_ASSIGN_OR_RETURN_IMPL(statusor, lhs, expr) \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = std::move(statusor).value()
