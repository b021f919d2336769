#include "libs/testing/fuzz_corpus.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

TEST(FuzzCorpus, EveryKernelAgreesWithScalar) {
  testing::RunFuzzCorpus("libs/kernels/testdata/fuzz_corpus", 28);
}

}  // namespace
}  // namespace atelier
