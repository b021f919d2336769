#pragma once

#include "libs/model/token_batch.h"

namespace atelier {

// Rows of one layer from one or several calls, merged: what the executor computes in one go.
struct LayerBatch {
  int layer = 0;
  TokenBatch tokens;  // [T, H]
  Routing routing;    // [T, k]; k is the largest of the merged calls, shorter ones padded with -1
};

}  // namespace atelier
