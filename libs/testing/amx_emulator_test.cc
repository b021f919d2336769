#include "libs/testing/amx_emulator.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "libs/testing/guarded_buffer.h"

namespace atelier::testing {
namespace {

// The 64 bytes of LDTILECFG.
struct alignas(64) Config {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t colsb[16] = {};
  uint8_t rows[16] = {};
};

void LoadConfig(const Config& config) { __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory"); }
Config StoreConfig() {
  Config config;
  __asm__ volatile("sttilecfg %0" : "=m"(config)::"memory");
  return config;
}
void Release() { __asm__ volatile("tilerelease" ::: "memory"); }
template <int kTile>
void Zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
void Load(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void LoadT1(const void* from, int64_t stride) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile)
                   : "memory");
}
template <int kTile>
void Store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}

struct BSSD {
  using A = int8_t;
  using B = int8_t;
  template <int kC, int kA, int kB>
  static void Run() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};
struct BSUD {
  using A = int8_t;
  using B = uint8_t;
  template <int kC, int kA, int kB>
  static void Run() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};
struct BUSD {
  using A = uint8_t;
  using B = int8_t;
  template <int kC, int kA, int kB>
  static void Run() {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};
struct BUUD {
  using A = uint8_t;
  using B = uint8_t;
  template <int kC, int kA, int kB>
  static void Run() {
    __asm__ volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};
struct Bf16 {
  // By arithmetic, not by bits; subnormals as they are.
  static float ToFloat(uint16_t bits) {
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    const int exponent = (bits >> 7) & 0xff, fraction = bits & 0x7f;
    if (exponent == 0xff) return fraction ? std::nanf("") : sign * HUGE_VALF;
    if (exponent == 0) return sign * 0.0f;  // the instruction takes them for zero
    return sign * std::ldexp(static_cast<float>(128 + fraction), exponent - 134);
  }
  template <int kC, int kA, int kB>
  static void Run() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};
struct Fp16 {
  static float ToFloat(uint16_t bits) {
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    const int exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0x1f) return fraction ? std::nanf("") : sign * HUGE_VALF;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
    return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  template <int kC, int kA, int kB>
  static void Run() {  // as bytes: the assembler of binutils 2.40 is the first to know it
    static_assert(kC == 0 && kA == 1 && kB == 2);
    __asm__ volatile(".byte 0xc4, 0xe2, 0x6b, 0x5c, 0xc1");
  }
};

thread_local sigjmp_buf fault_return;
thread_local volatile sig_atomic_t fault_expected = 0;

void ReturnFromFault(int signal, siginfo_t*, void*) {
  if (fault_expected == 0) {
    std::signal(signal, SIG_DFL);
    return;
  }
  siglongjmp(fault_return, signal);
}

// The signal that calling `function` raises on this thread, or 0.
template <typename Function>
int SignalOf(Function function) {
  fault_expected = 1;
  const int signal = sigsetjmp(fault_return, 1);
  if (signal == 0) function();
  fault_expected = 0;
  return signal;
}

// Handlers that return from faults, and the emulator above them.
class AmxEmulatorTest : public ::testing::Test {
 protected:
  class FaultHandlers {
   public:
    FaultHandlers() {
      struct sigaction action {};
      action.sa_sigaction = ReturnFromFault;
      action.sa_flags = SA_SIGINFO;
      sigaction(SIGILL, &action, &illegal_);
      sigaction(SIGSEGV, &action, &segmentation_);
    }
    ~FaultHandlers() {
      sigaction(SIGILL, &illegal_, nullptr);
      sigaction(SIGSEGV, &segmentation_, nullptr);
    }

   private:
    struct sigaction illegal_, segmentation_;
  };
  ~AmxEmulatorTest() override { Release(); }

  FaultHandlers handlers_;
  AmxEmulator emulator_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : generator_(seed) {}
  uint32_t operator()() { return static_cast<uint32_t>(generator_()); }

 private:
  std::mt19937 generator_;
};

struct Shape {
  int rows, groups, columns;  // M, K in groups of 4 bytes, N in 4-byte elements
};

constexpr int kSizes[] = {1, 2, 3, 7, 15, 16};

// Tiles c: [M, N], a: [M, K], b: [K, N].
Config ConfigOf(const Shape& shape, int c = 0, int a = 1, int b = 2) {
  Config config;
  config.rows[c] = config.rows[a] = static_cast<uint8_t>(shape.rows);
  config.rows[b] = static_cast<uint8_t>(shape.groups);
  config.colsb[c] = config.colsb[b] = static_cast<uint16_t>(shape.columns * 4);
  config.colsb[a] = static_cast<uint16_t>(shape.groups * 4);
  return config;
}

// Operands of one product, without gaps.
template <typename Element>
struct Operands {
  Shape shape;
  std::vector<Element> a, b;
  std::vector<uint32_t> c;

  template <typename MakeA, typename MakeB, typename MakeC>
  Operands(const Shape& s, MakeA make_a, MakeB make_b, MakeC make_c) : shape(s) {
    const size_t per_group = 4 / sizeof(Element);
    a.resize(static_cast<size_t>(s.rows * s.groups) * per_group);
    b.resize(static_cast<size_t>(s.groups * s.columns) * per_group);
    c.resize(static_cast<size_t>(s.rows * s.columns));
    for (Element& value : a) value = static_cast<Element>(make_a());
    for (Element& value : b) value = static_cast<Element>(make_b());
    for (uint32_t& value : c) value = make_c();
  }
  // Element i of group k of row m of A; and of column n of B.
  Element A(int m, int k, int i) const {
    return a[static_cast<size_t>(m * shape.groups + k) * (4 / sizeof(Element)) +
             static_cast<size_t>(i)];
  }
  Element B(int k, int n, int i) const {
    return b[static_cast<size_t>(k * shape.columns + n) * (4 / sizeof(Element)) +
             static_cast<size_t>(i)];
  }
};

template <typename Instruction, int kC = 0, int kA = 1, int kB = 2, typename Element>
std::vector<uint32_t> RunProduct(const Operands<Element>& x) {
  LoadConfig(ConfigOf(x.shape, kC, kA, kB));
  Load<kC>(x.c.data(), x.shape.columns * 4);
  Load<kA>(x.a.data(), x.shape.groups * 4);
  Load<kB>(x.b.data(), x.shape.columns * 4);
  Instruction::template Run<kC, kA, kB>();
  std::vector<uint32_t> out(x.c.size());
  Store<kC>(out.data(), x.shape.columns * 4);
  return out;
}

template <typename Instruction>
std::vector<uint32_t> IntReference(const Operands<uint8_t>& x) {
  std::vector<uint32_t> out = x.c;
  for (int m = 0; m < x.shape.rows; ++m) {
    for (int n = 0; n < x.shape.columns; ++n) {
      int64_t sum = 0;
      for (int k = 0; k < x.shape.groups * 4; ++k) {
        const auto a = static_cast<typename Instruction::A>(x.A(m, k / 4, k % 4));
        const auto b = static_cast<typename Instruction::B>(x.B(k / 4, n, k % 4));
        sum += int64_t{a} * int64_t{b};
      }
      out[static_cast<size_t>(m * x.shape.columns + n)] += static_cast<uint32_t>(sum);
    }
  }
  return out;
}

template <typename Instruction>
class AmxIntProduct : public AmxEmulatorTest {};
using IntInstructions = ::testing::Types<BSSD, BSUD, BUSD, BUUD>;
TYPED_TEST_SUITE(AmxIntProduct, IntInstructions);

TYPED_TEST(AmxIntProduct, EqualsPlainLoopsForEveryShape) {
  Random random(5);
  const auto any = [&] { return random(); };
  for (int rows : kSizes) {
    for (int groups : kSizes) {
      for (int columns : kSizes) {
        const Operands<uint8_t> x({rows, groups, columns}, any, any, any);
        ASSERT_EQ(RunProduct<TypeParam>(x), IntReference<TypeParam>(x))
            << rows << "x" << groups << "x" << columns;
      }
    }
  }
}

TYPED_TEST(AmxIntProduct, WrapsAroundAtTheExtremes) {
  for (int a : {0, 127, 128, 255}) {
    for (int b : {0, 127, 128, 255}) {
      for (uint32_t c : {0u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
        const Operands<uint8_t> x(
            {16, 16, 16}, [a] { return a; }, [b] { return b; }, [c] { return c; });
        ASSERT_EQ(RunProduct<TypeParam>(x), IntReference<TypeParam>(x)) << a << " " << b;
      }
    }
  }
}

template <typename Instruction, int... kTiles>
void ExpectProductsInEveryTile(const Operands<uint8_t>& x, std::integer_sequence<int, kTiles...>) {
  const std::vector<uint32_t> want = IntReference<Instruction>(x);
  const std::vector<uint32_t> got[] = {
      RunProduct<Instruction, kTiles, (kTiles + 1) % 8, (kTiles + 3) % 8>(x)...};
  for (const std::vector<uint32_t>& product : got) EXPECT_EQ(product, want);
}

TYPED_TEST(AmxIntProduct, TakesEveryTileInEveryPlace) {
  Random random(6);
  const auto any = [&] { return random(); };
  ExpectProductsInEveryTile<TypeParam>(Operands<uint8_t>({9, 5, 11}, any, any, any),
                                       std::make_integer_sequence<int, 8>());
}

// As the manual's operation section: with the flushing and the rounding of this CPU's own fp32
// units, on another path than the emulator's doubles.
template <typename Instruction>
__attribute__((noinline)) void FloatReference(const Operands<uint16_t>& x, float* out) {
  for (int m = 0; m < x.shape.rows; ++m) {
    for (int n = 0; n < x.shape.columns; ++n) {
      float even = 0, odd = 0;
      for (int k = 0; k < x.shape.groups; ++k) {
        even =
            std::fma(Instruction::ToFloat(x.A(m, k, 0)), Instruction::ToFloat(x.B(k, n, 0)), even);
        odd = std::fma(Instruction::ToFloat(x.A(m, k, 1)), Instruction::ToFloat(x.B(k, n, 1)), odd);
      }
      volatile float sum = even + odd;
      *out++ += sum;
    }
  }
}

template <typename Instruction>
std::vector<uint32_t> FlushedReference(const Operands<uint16_t>& x) {
  std::vector<float> out(x.c.size());
  std::memcpy(out.data(), x.c.data(), out.size() * 4);
  constexpr unsigned kFlushInputsAndOutputs = 0x8040;
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | kFlushInputsAndOutputs);
  FloatReference<Instruction>(x, out.data());
  _mm_setcsr(saved);
  std::vector<uint32_t> bits(out.size());
  std::memcpy(bits.data(), out.data(), out.size() * 4);
  return bits;
}

void ExpectSameFloats(const std::vector<uint32_t>& got, const std::vector<uint32_t>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(std::bit_cast<float>(want[i]))) {
      ASSERT_TRUE(std::isnan(std::bit_cast<float>(got[i]))) << i;
      ASSERT_NE(got[i] & 0x00400000u, 0u) << "a signalling NaN at " << i;
    } else {
      ASSERT_EQ(got[i], want[i]) << i << ": " << std::bit_cast<float>(got[i]) << " instead of "
                                 << std::bit_cast<float>(want[i]);
    }
  }
}

template <typename Instruction>
class AmxFloatProduct : public AmxEmulatorTest {
 protected:
  void SetUp() override {
    if (std::is_same_v<Instruction, Fp16> && AmxEmulator::IsNative()) {
      GTEST_SKIP() << "AMX-FP16 is a later extension than AMX";
    }
  }
};
using FloatInstructions = ::testing::Types<Bf16, Fp16>;
TYPED_TEST_SUITE(AmxFloatProduct, FloatInstructions);

TYPED_TEST(AmxFloatProduct, EqualsPlainLoopsForEveryShape) {
  constexpr bool kIsBf16 = std::is_same_v<TypeParam, Bf16>;
  Random random(7);
  // Values of about 2^-4 to 2^4 of both signs, so that sums round and cancel.
  const auto number = [&] {
    const uint32_t bits = random();
    return kIsBf16 ? (bits & 0x8000u) | (0x3d80u + (bits & 0x3ffu))
                   : (bits & 0x8000u) | (0x2c00u + (bits & 0x1fffu));
  };
  const auto sum = [&] { return std::bit_cast<uint32_t>(std::ldexp(float(random()), -28)); };
  for (int rows : kSizes) {
    for (int groups : kSizes) {
      for (int columns : kSizes) {
        const Operands<uint16_t> x({rows, groups, columns}, number, number, sum);
        SCOPED_TRACE(::testing::Message() << rows << "x" << groups << "x" << columns);
        ASSERT_NO_FATAL_FAILURE(
            ExpectSameFloats(RunProduct<TypeParam>(x), FlushedReference<TypeParam>(x)));
      }
    }
  }
}

TYPED_TEST(AmxFloatProduct, EqualsPlainLoopsForAnyBits) {
  Random random(8);
  const auto any = [&] { return random(); };
  for (int groups : {1, 2, 16}) {
    for (int round = 0; round < 40; ++round) {
      const Operands<uint16_t> x({16, groups, 16}, any, any, any);
      ASSERT_NO_FATAL_FAILURE(
          ExpectSameFloats(RunProduct<TypeParam>(x), FlushedReference<TypeParam>(x)));
    }
  }
}

TYPED_TEST(AmxFloatProduct, EqualsPlainLoopsForZerosSubnormalsInfinitiesAndNans) {
  constexpr bool kIsBf16 = std::is_same_v<TypeParam, Bf16>;
  const uint16_t infinity = kIsBf16 ? 0x7f80 : 0x7c00, one = kIsBf16 ? 0x3f80 : 0x3c00;
  const uint16_t smallest_normal = kIsBf16 ? 0x0080 : 0x0400;
  const uint16_t values[] = {0,
                             1,
                             static_cast<uint16_t>(smallest_normal - 1),
                             smallest_normal,
                             one,
                             infinity,
                             static_cast<uint16_t>(infinity + 1),
                             static_cast<uint16_t>(infinity - 1)};
  Random random(9);
  const auto pick = [&] {
    return static_cast<uint32_t>(values[random() % std::size(values)]) | (random() & 0x8000u);
  };
  const auto sum = [&] {
    const uint32_t sums[] = {0,          1,          0x007fffff, 0x00800000,
                             0x3f800000, 0x7f7fffff, 0x7f800000, 0x7f800001};
    return sums[random() % std::size(sums)] | (random() & 0x80000000u);
  };
  for (int round = 0; round < 60; ++round) {
    const Operands<uint16_t> x({16, 1 + round % 3, 16}, pick, pick, sum);
    ASSERT_NO_FATAL_FAILURE(
        ExpectSameFloats(RunProduct<TypeParam>(x), FlushedReference<TypeParam>(x)));
  }
}

// One element: c + even[0] * even'[0] + …, from bits.
template <typename Instruction>
float OneElement(float c, const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
  size_t next_a = 0, next_b = 0;
  const Operands<uint16_t> x(
      {1, static_cast<int>(a.size() / 2), 1}, [&] { return a[next_a++]; },
      [&] { return b[next_b++]; }, [c] { return std::bit_cast<uint32_t>(c); });
  return std::bit_cast<float>(RunProduct<Instruction>(x)[0]);
}

TEST_F(AmxEmulatorTest, Bf16AddsATileOfKBeforeTheAccumulator) {
  const std::vector<uint16_t> ones(32, 0x3f80);
  EXPECT_EQ(OneElement<Bf16>(0x1p24f, ones, ones), 0x1p24f + 32);
}

TEST_F(AmxEmulatorTest, Bf16ChainsAreFusedAndSplitIntoEvenAndOdd) {
  // Even: 2^24 + 1 rounds to 2^24, twice; odd: 1 + 1. One chain would lose all four ones.
  const std::vector<uint16_t> a = {0x4b80, 0, 0x3f80, 0x3f80, 0x3f80, 0x3f80};
  const std::vector<uint16_t> b(6, 0x3f80);
  EXPECT_EQ(OneElement<Bf16>(0, a, b), 0x1p24f + 2);
}

TEST_F(AmxEmulatorTest, Bf16FlushesSubnormalInputsAndResults) {
  EXPECT_EQ(OneElement<Bf16>(0, {0x0001, 0}, {0x7f00, 0}), 0.0f);
  EXPECT_EQ(OneElement<Bf16>(std::bit_cast<float>(0x00000001u), {0, 0}, {0, 0}), 0.0f);
  EXPECT_EQ(OneElement<Bf16>(0, {0x0080, 0}, {0x3f00, 0}), 0.0f);  // 2^-127
  EXPECT_EQ(OneElement<Bf16>(0, {0x0080, 0}, {0x3f80, 0}), 0x1p-126f);
  // 1.5 x 2^-126 - 2^-126: as the last sum, and within a chain, where 2^-126 is added once more.
  EXPECT_EQ(OneElement<Bf16>(0x1.8p-126f, {0x8080, 0}, {0x3f80, 0}), 0.0f);
  EXPECT_EQ(
      OneElement<Bf16>(0, {0x00c0, 0, 0x8080, 0, 0x0080, 0}, std::vector<uint16_t>(6, 0x3f80)),
      0x1p-126f);
  const float minus_zero = OneElement<Bf16>(-0.0f, {0x8080, 0x8000}, {0x3f00, 0x3f80});
  EXPECT_EQ(std::bit_cast<uint32_t>(minus_zero), 0x00000000u);  // 0 + -0 rounds to +0 in the chain
}

TEST_F(AmxEmulatorTest, TilesArriveAndLeaveByAnyStride) {
  Config config;
  config.rows[3] = 5;
  config.colsb[3] = 12;
  LoadConfig(config);
  std::array<uint8_t, 1024> from;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 7 + i / 256);
  for (int64_t stride : {0, 1, 12, 64, 100, -12, -64, -97}) {
    const uint8_t* base = from.data() + 512;
    for (bool stream : {false, true}) {
      stream ? LoadT1<3>(base, stride) : Load<3>(base, stride);
      std::array<uint8_t, 1024> to, want;
      to.fill(0xee);
      want = to;
      Store<3>(to.data() + 512, stride);
      for (int64_t row = 0; row < 5; ++row) {
        std::memcpy(want.data() + 512 + row * stride, base + row * stride, 12);
      }
      EXPECT_EQ(to, want) << "stride " << stride;
    }
  }
}

TEST_F(AmxEmulatorTest, ReadsAndWritesNoByteBesideATile) {
  Config config;
  config.rows[0] = 7;
  config.colsb[0] = 20;
  LoadConfig(config);
  GuardedBuffer<uint8_t> from(7 * 20), to(7 * 20);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i);
  Load<0>(from.data(), 20);
  Store<0>(to.data(), 20);
  EXPECT_EQ(std::memcmp(from.data(), to.data(), from.size()), 0);
}

TEST_F(AmxEmulatorTest, ZeroClearsATileAndReleaseEverything) {
  LoadConfig(ConfigOf({16, 16, 16}));
  std::array<uint8_t, 1024> ones, out;
  ones.fill(1);
  Load<0>(ones.data(), 64);
  Load<1>(ones.data(), 64);
  Zero<0>();
  Store<0>(out.data(), 64);
  EXPECT_EQ(std::count(out.begin(), out.end(), 0), 1024);
  Store<1>(out.data(), 64);
  EXPECT_EQ(out, ones);
  LoadConfig(ConfigOf({16, 16, 16}));
  Store<1>(out.data(), 64);
  EXPECT_EQ(std::count(out.begin(), out.end(), 0), 1024) << "a new configuration clears the tiles";
  Release();
  EXPECT_EQ(SignalOf([&] { Store<1>(out.data(), 64); }), SIGILL);
}

TEST_F(AmxEmulatorTest, ConfigurationComesBack) {
  Config config = ConfigOf({3, 5, 7}, 6, 2, 4);
  config.start_row = 2;
  LoadConfig(config);
  const Config stored = StoreConfig();
  EXPECT_EQ(std::memcmp(&stored, &config, sizeof(config)), 0);
  Config none;
  none.palette = 0;
  none.rows[3] = 99;  // not looked at
  LoadConfig(none);
  const Config zero = StoreConfig();
  const uint8_t zeros[64] = {};
  EXPECT_EQ(std::memcmp(&zero, zeros, sizeof(zeros)), 0);
}

TEST_F(AmxEmulatorTest, StartRowIsWhereALoadBegins) {
  std::array<uint8_t, 1024> from, out;
  from.fill(9);
  Config config = ConfigOf({16, 16, 16});
  config.start_row = 10;
  LoadConfig(config);
  Load<0>(from.data(), 64);
  EXPECT_EQ(StoreConfig().start_row, 0);
  Store<0>(out.data(), 64);
  EXPECT_EQ(std::count(out.begin(), out.begin() + 640, 0), 640);
  EXPECT_EQ(std::count(out.begin() + 640, out.end(), 9), 384);
  config = ConfigOf({4, 4, 4});
  config.start_row = 4;
  LoadConfig(config);
  EXPECT_EQ(SignalOf([&] { Load<0>(from.data(), 64); }), SIGILL);
}

TEST_F(AmxEmulatorTest, BadConfigurationsAreGeneralProtectionFaults) {
  const auto fault_of = [](auto change) {
    Config config = ConfigOf({16, 16, 16});
    change(config);
    return SignalOf([&config] { LoadConfig(config); });
  };
  EXPECT_EQ(fault_of([](Config&) {}), 0);
  EXPECT_EQ(fault_of([](Config& c) { c.palette = 2; }), SIGSEGV);
  EXPECT_EQ(fault_of([](Config& c) { c.reserved[0] = 1; }), SIGSEGV);
  EXPECT_EQ(fault_of([](Config& c) { c.reserved[13] = 1; }), SIGSEGV);
  EXPECT_EQ(fault_of([](Config& c) { c.colsb[8] = 1; }), SIGSEGV);
  EXPECT_EQ(fault_of([](Config& c) { c.rows[8] = 1; }), SIGSEGV);
  EXPECT_EQ(fault_of([](Config& c) { c.rows[15] = 1; }), SIGSEGV);
  EXPECT_EQ(fault_of([](Config& c) { c.rows[7] = 17, c.colsb[7] = 64; }), SIGSEGV);
  EXPECT_EQ(fault_of([](Config& c) { c.rows[7] = 1, c.colsb[7] = 65; }), SIGSEGV);
  EXPECT_EQ(fault_of([](Config& c) { c.rows[7] = 1; }), SIGSEGV);
  EXPECT_EQ(fault_of([](Config& c) { c.colsb[7] = 4; }), SIGSEGV);
  // A refused configuration leaves the one before.
  EXPECT_EQ(StoreConfig().rows[0], 16);
}

TEST_F(AmxEmulatorTest, InstructionsOnTilesThatDoNotFitAreUndefined) {
  const auto product = [] { BSSD::Run<0, 1, 2>(); };
  const auto with = [&](auto change) {
    Config config = ConfigOf({8, 6, 10});
    change(config);
    LoadConfig(config);
    return SignalOf(product);
  };
  EXPECT_EQ(with([](Config&) {}), 0);
  EXPECT_EQ(with([](Config& c) { c.rows[0] = 7; }), SIGILL);
  EXPECT_EQ(with([](Config& c) { c.colsb[0] = 36; }), SIGILL);
  EXPECT_EQ(with([](Config& c) { c.colsb[1] = 20; }), SIGILL);
  EXPECT_EQ(with([](Config& c) { c.rows[2] = 5; }), SIGILL);
  EXPECT_EQ(with([](Config& c) { c.colsb[0] = c.colsb[2] = 38; }), SIGILL);
  EXPECT_EQ(with([](Config& c) { c.colsb[1] = c.rows[1] = 0; }), SIGILL);
  LoadConfig(ConfigOf({16, 16, 16}));
  // Tiles 0, 0, 2 and so on, which the assembler refuses.
  EXPECT_EQ(SignalOf([] { __asm__ volatile(".byte 0xc4, 0xe2, 0x6b, 0x5e, 0xc0"); }), SIGILL);
  EXPECT_EQ(SignalOf([] { __asm__ volatile(".byte 0xc4, 0xe2, 0x73, 0x5e, 0xc1"); }), SIGILL);
  EXPECT_EQ(SignalOf([] { __asm__ volatile(".byte 0xc4, 0xe2, 0x7b, 0x5e, 0xc1"); }), SIGILL);
  EXPECT_EQ(SignalOf([] { Bf16::Run<0, 1, 5>(); }), SIGILL);
  EXPECT_EQ(SignalOf([] { Zero<5>(); }), SIGILL);
  EXPECT_EQ(SignalOf([] { __asm__ volatile(".byte 0xc4, 0x62, 0x7b, 0x49, 0xc0"); }), SIGILL)
      << "tilezero of tmm8";
  uint8_t memory[64] = {};
  EXPECT_EQ(SignalOf([&] { Load<5>(memory, 0); }), SIGILL);
  Config narrow = ConfigOf({16, 16, 16});
  narrow.colsb[4] = 6, narrow.rows[4] = 1;
  LoadConfig(narrow);
  EXPECT_EQ(SignalOf([&] { Load<4>(memory, 0); }), SIGILL);
  EXPECT_EQ(SignalOf([&] { Zero<4>(); }), 0);
}

TEST_F(AmxEmulatorTest, NothingWorksBeforeAConfiguration) {
  std::array<uint8_t, 1024> memory = {};
  EXPECT_EQ(SignalOf([&] { Load<0>(memory.data(), 64); }), SIGILL);
  EXPECT_EQ(SignalOf([&] { Store<0>(memory.data(), 64); }), SIGILL);
  EXPECT_EQ(SignalOf([] { Zero<0>(); }), SIGILL);
  EXPECT_EQ(SignalOf([] { BUUD::Run<0, 1, 2>(); }), SIGILL);
  EXPECT_EQ(SignalOf([] { Bf16::Run<0, 1, 2>(); }), SIGILL);
  EXPECT_EQ(SignalOf([] { StoreConfig(); }), 0);
  EXPECT_EQ(SignalOf([] { Release(); }), 0);
}

TEST_F(AmxEmulatorTest, EveryFormOfAnAddressReachesItsMemory) {
  LoadConfig(ConfigOf({2, 16, 16}));
  std::array<int32_t, 512> from, out;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int32_t>(i);
  const int32_t* base = from.data() + 128;
  const auto first_of_rows = [&] {
    Store<0>(out.data(), 64);
    return std::pair(out[0], out[16]);
  };
  const int64_t index = 8;
  __asm__ volatile(
      "mov %0, %%r12; mov %1, %%r13; tileloadd 0x40(%%r13,%%r12,8), %%tmm0" ::"r"(index), "r"(base)
      : "r12", "r13", "memory");
  EXPECT_EQ(first_of_rows(), std::pair(144, 160));
  __asm__ volatile(
      "mov %0, %%rbx; mov %1, %%r15; tileloadd -0x100(%%rbx,%%r15,4), %%tmm0" ::"r"(base),
      "r"(index)
      : "rbx", "r15", "memory");
  EXPECT_EQ(first_of_rows(), std::pair(64, 72));
  __asm__ volatile("mov %0, %%r8; tileloadd 0x200(%%r8), %%tmm0" ::"r"(base) : "r8", "memory");
  EXPECT_EQ(first_of_rows(), std::pair(256, 256)) << "no index: stride 0";
}

const Config global_config = ConfigOf({3, 4, 5});
TEST_F(AmxEmulatorTest, ConfigurationsAreReadRelativeToTheInstruction) {
  LoadConfig(global_config);
  EXPECT_EQ(StoreConfig().rows[0], 3);
  alignas(64) Config on_stack[3];
  on_stack[2] = ConfigOf({9, 9, 9});
  const int64_t index = 16;
  __asm__ volatile("ldtilecfg (%0,%1,8)" ::"r"(on_stack), "r"(index) : "memory");
  EXPECT_EQ(StoreConfig().rows[0], 9);
}

TEST_F(AmxEmulatorTest, ALoadThatFaultsResumesAtItsRow) {
  constexpr size_t kPage = 4096;
  void* mapped =
      mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* pages = static_cast<uint8_t*>(mapped);
  std::memset(pages, 3, 2 * kPage);
  ASSERT_EQ(mprotect(pages + kPage, kPage, PROT_NONE), 0);
  LoadConfig(ConfigOf({16, 16, 16}));
  const uint8_t* from = pages + kPage - 6 * 64;
  EXPECT_EQ(SignalOf([&] { Load<0>(from, 64); }), SIGSEGV);
  EXPECT_EQ(StoreConfig().start_row, 6);
  ASSERT_EQ(mprotect(pages + kPage, kPage, PROT_READ), 0);
  Load<0>(from, 64);
  std::array<uint8_t, 1024> out;
  Store<0>(out.data(), 64);
  EXPECT_EQ(std::count(out.begin(), out.end(), 3), 1024);
  munmap(mapped, 2 * kPage);
}

TEST_F(AmxEmulatorTest, ThreadsHaveTheirOwnTiles) {
  constexpr int kThreads = 4, kRounds = 50;
  std::atomic<int> wrong{0}, configured_at_start{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      if (StoreConfig().palette != 0) ++configured_at_start;
      Random random(static_cast<uint32_t>(t));
      const auto any = [&] { return random(); };
      for (int round = 0; round < kRounds; ++round) {
        const Operands<uint8_t> x({t * 4 + 1, round % 16 + 1, 16 - t}, any, any, any);
        if (RunProduct<BSUD>(x) != IntReference<BSUD>(x)) ++wrong;
        std::this_thread::yield();
      }
      Release();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(configured_at_start, 0);
}

TEST_F(AmxEmulatorTest, IgnoresTheRoundingModeOfTheThread) {
  Random random(10);
  const auto number = [&] { return 0x3d80u + (random() & 0x3ffu); };
  const auto zero = [] { return 0u; };
  const Operands<uint16_t> x({16, 16, 16}, number, number, zero);
  const std::vector<uint32_t> want = RunProduct<Bf16>(x);
  const unsigned saved = _mm_getcsr();
  for (const unsigned mode : {0x2000u, 0x4000u, 0x6000u}) {
    _mm_setcsr(saved | mode);
    const std::vector<uint32_t> got = RunProduct<Bf16>(x);
    _mm_setcsr(saved);
    EXPECT_EQ(got, want) << mode;
  }
}

TEST_F(AmxEmulatorTest, LeavesRegistersAndRoundingModeAlone) {
  LoadConfig(ConfigOf({16, 16, 16}));
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040 | 0x6000);  // flush, round towards zero
  double kept[4] = {1.5, 2.5, 3.5, 4.5};
  __asm__ volatile(
      "movupd (%0), %%xmm3; movupd 16(%0), %%xmm12; tdpbf16ps %%tmm2, %%tmm1, %%tmm0;"
      "addpd %%xmm3, %%xmm12; movupd %%xmm12, (%0)" ::"r"(kept)
      : "xmm3", "xmm12", "memory");
  EXPECT_EQ(_mm_getcsr() & ~0x3fu, (saved | 0x8040 | 0x6000) & ~0x3fu);
  _mm_setcsr(saved);
  EXPECT_EQ(kept[0], 5.0);
  EXPECT_EQ(kept[1], 7.0);
}

TEST_F(AmxEmulatorTest, OtherIllegalInstructionsReachTheHandlerBefore) {
  EXPECT_EQ(SignalOf([] { __asm__ volatile("ud2"); }), SIGILL);
}

TEST(AmxEmulator, OnlyInstalledWhereTheCpuHasNoAmxAndGoneAfterwards) {
  struct sigaction before, during, after;
  sigaction(SIGILL, nullptr, &before);
  {
    const AmxEmulator emulator;
    sigaction(SIGILL, nullptr, &during);
  }
  sigaction(SIGILL, nullptr, &after);
  EXPECT_EQ(during.sa_sigaction == before.sa_sigaction, AmxEmulator::IsNative());
  EXPECT_EQ(after.sa_sigaction, before.sa_sigaction);
}

TEST(AmxEmulatorDeathTest, WithoutItAmxEndsTheProcess) {
  if (AmxEmulator::IsNative()) GTEST_SKIP() << "this CPU has AMX";
  EXPECT_EXIT(Release(), ::testing::KilledBySignal(SIGILL), "");
  EXPECT_EXIT(LoadConfig(Config{}), ::testing::KilledBySignal(SIGILL), "");
}

TEST(AmxEmulatorDeathTest, FaultsWithoutAHandlerEndTheProcessAndSayWhy) {
  const AmxEmulator emulator;
  if (AmxEmulator::IsNative()) GTEST_SKIP() << "hardware says nothing";
  EXPECT_EXIT(Zero<3>(), ::testing::KilledBySignal(SIGILL), "#UD: no tile configuration");
}

}  // namespace
}  // namespace atelier::testing
