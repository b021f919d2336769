#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier::testing {

inline const absl::Status& ToStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& ToStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

// EXPECT_THAT(f(), IsOk());
MATCHER(IsOk, "is OK") {
  *result_listener << ToStatus(arg).ToString();
  return ToStatus(arg).ok();
}

// EXPECT_THAT(f(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("model-00002")));
MATCHER_P2(StatusIs, code, message, "") {
  *result_listener << ToStatus(arg).ToString();
  return ToStatus(arg).code() == code &&
         ::testing::ExplainMatchResult(message, std::string(ToStatus(arg).message()),
                                       result_listener);
}

}  // namespace atelier::testing

#define ATELIER_ASSERT_OK(expr) ASSERT_THAT((expr), ::atelier::testing::IsOk())
#define ATELIER_EXPECT_OK(expr) EXPECT_THAT((expr), ::atelier::testing::IsOk())
#define ATELIER_ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ATELIER_ASSERT_OK_AND_ASSIGN_IMPL(ATELIER_TEST_JOIN(statusor_, __LINE__), lhs, expr)
#define ATELIER_TEST_JOIN(a, b) ATELIER_TEST_JOIN_IMPL(a, b)
#define ATELIER_TEST_JOIN_IMPL(a, b) a##b
#define ATELIER_ASSERT_OK_AND_ASSIGN_IMPL(statusor, lhs, expr) \
  auto statusor = (expr);                                      \
  ASSERT_THAT(statusor, ::atelier::testing::IsOk());           \
  lhs = std::move(statusor).value()
