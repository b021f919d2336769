#include "gtest/gtest.h"
#include "libs/testing/fuzz_corpus.h"

namespace atelier {
namespace {

TEST(FuzzCorpus, IsSurvived) {
  testing::RunFuzzCorpus("libs/checkpoint/testdata/fuzz_corpus", 10);
}

}  // namespace
}  // namespace atelier
