#include "libs/base/endpoint.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atelier {
namespace {

using ::testing::HasSubstr;

TEST(Endpoint, ReadsEveryFormAndWritesItBack) {
  for (const char* text : {"127.0.0.1:7070", "localhost:0", "worker-0.workers.default.svc:65535",
                           "[::1]:80", "[fe80::1]:7070", "unix:/run/atelier/worker.sock"}) {
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->ToString(), text);
  }
  EXPECT_EQ(ParseEndpoint("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseEndpoint("unix:/a:b")->unix_path, "/a:b");
}

TEST(Endpoint, SaysWhatIsWrong) {
  const auto error = [](const std::string& text) {
    return std::string(ParseEndpoint(text).status().message());
  };
  for (const char* text : {"host", "", "unix"}) EXPECT_THAT(error(text), HasSubstr("port is miss"));
  for (const char* text : {"h:", "h:x", "h:-1", "h:65536", "h:+8", "h: 8", "h:8s"}) {
    EXPECT_THAT(error(text), HasSubstr("0 to 65535")) << text;
  }
  EXPECT_THAT(error(":80"), HasSubstr("host is missing"));
  for (const char* text : {"::1:80", "[::1:80", "::1]:80", "[name]:80", "a b:80", "a,b:80"}) {
    EXPECT_THAT(error(text), HasSubstr("host is no name")) << text;
  }
  for (const char* text : {"unix:", "unix:relative"}) {
    EXPECT_THAT(error(text), HasSubstr("must be absolute")) << text;
  }
  EXPECT_THAT(error("unix:/" + std::string(107, 'a')),
              HasSubstr("108 bytes, the kernel takes 107"));
  EXPECT_THAT(error(std::string("unix:/a\0b", 9)), HasSubstr("control character"));
}

TEST(Endpoint, KnowsWhatOnlyThisMachineCanReach) {
  for (const char* text : {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/a"}) {
    EXPECT_TRUE(ParseEndpoint(text)->IsLoopback()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.evil.example:1", "myhost:1"}) {
    EXPECT_FALSE(ParseEndpoint(text)->IsLoopback()) << text;
  }
}

}  // namespace
}  // namespace atelier
