#pragma once

#include <cstdint>

#include "libs/kernels/pack.h"
#include "libs/model/quant_source.h"

namespace atelier {

// The block-quantised methods that floats can be turned into: INT4 without zero points, MXFP4,
// Q8_0.
bool CanQuantizeTo(Method method);
// Those, BF16 and INT8: what PackMatrix packs floats as.
bool TakesFloats(Method method);

// A float matrix as the codes and scales of a method. Every Read quantises the inputs it is asked
// for, so nothing is kept; the result does not depend on how a row is cut into reads.
//   INT4:  the scale of a group is searched: the one of least squared error over the group, all
//          codes -8…7 used, of either sign, kept as fp16.
//   MXFP4: the scale is the power of two of the largest magnitude, codes to nearest even,
//          saturating (OCP Microscaling, conversion from floats).
//   Q8_0:  scale = largest magnitude / 127 as fp16, codes to nearest even.
// A group with a NaN, an infinity, or a scale beyond fp16 gets scale NaN.
class QuantizingSource final : public QuantSource {
 public:
  // REQUIRES: CanQuantizeTo(method).
  QuantizingSource(const WeightSource& floats, Method method);

  void Read(int row, int column, int count, QuantBlock& out) const override;

 private:
  const WeightSource floats_;
  const Method method_;
  const int group_;
};

}  // namespace atelier
