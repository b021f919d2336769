#include "libs/testing/fuzz_corpus.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

TEST(FuzzCorpus, IsSurvived) { testing::RunFuzzCorpus("libs/checkpoint/testdata/fuzz_corpus", 37); }

}  // namespace
}  // namespace atelier
