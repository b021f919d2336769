#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "libs/kernels/expert_ffn.h"
#include "libs/kernels/kernel_table.h"
#include "libs/testing/guarded_buffer.h"

namespace atelier::testing {

// [rows, 16 * (panel_end - panel_begin)], written by one kernel up to an inaccessible page.
inline std::vector<float> RunGemm(const KernelEntry& entry, const PackedMatrix& weights,
                                  const ActivationRows& rows, int panel_begin, int panel_end) {
  const size_t stride = static_cast<size_t>(panel_end - panel_begin) * kPanelWidth;
  GuardedBuffer<float> out(static_cast<size_t>(rows.rows) * stride);
  // A kernel that adds to what is there, or leaves some of it, is found out.
  std::fill_n(out.data(), out.size(), std::numeric_limits<float>::quiet_NaN());
  Gemm(KernelTable::ForEntry(entry), weights, rows, panel_begin, panel_end, out.data(), stride);
  return std::vector<float>(out.data(), out.data() + out.size());
}

inline ActivationRows Slice(const ActivationRows& rows, int begin, int count) {
  ActivationRows slice = rows;
  slice.data += static_cast<size_t>(begin) * rows.stride;
  if (slice.scales != nullptr) slice.scales += begin;
  slice.rows = count;
  return slice;
}

inline bool SameBits(const float* a, const float* b, size_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(float)) == 0;
}

}  // namespace atelier::testing
