#include "tools/atelier/fetch/web_flags.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "libs/base/version.h"

namespace atelier {
namespace {

constexpr int kMaxJobs = 256;

std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

}  // namespace

WebFlags::WebFlags()
    : hub(FromEnvironment("HF_ENDPOINT", kDefaultHub)),
      hub_token(FromEnvironment("HF_TOKEN", "")) {}

FlagSection WebFlagSection(WebFlags* flags) {
  return {
      "Network",
      {IntFlag("jobs", "Connections at a time.", {1, kMaxJobs}, &flags->jobs),
       StringFlag("hf-endpoint", "URL",
                  "The model hub, for hf:// and in the place of https://huggingface.co; "
                  "HF_ENDPOINT in the environment sets it too.",
                  &flags->hub),
       StringFlag("token", "TOKEN",
                  "Sent to the host of the URL, over https or to this machine, and nowhere "
                  "else; other users can read a command line. Default: the environment's "
                  "HF_TOKEN, for the hub only.",
                  &flags->token),
       IntFlag("retries",
               "Attempts after a failure that may mend itself (a dropped connection, status 429 "
               "or 5xx), each after twice the wait of the one before, or what the server asks "
               "for. A range of bytes goes on where it broke off, and a byte that comes starts its "
               "count anew; config files, and all files of a server that knows no ranges, begin "
               "again, within the one count.",
               {0, 1000}, &flags->retries),
       DurationFlag("retry-wait", "Before the first of them.", &flags->retry_wait),
       DurationFlag("stall-timeout", "A connection that carries nothing for as long is given up.",
                    &flags->stall_timeout)}};
}

void ApplyWebFlags(const WebFlags& flags, FetcherOptions& options) {
  options.jobs = flags.jobs;
  options.reader.retries.max_attempts = flags.retries + 1;
  options.reader.retries.first_wait = flags.retry_wait;
  const std::string origin = options.source.folder.origin();
  const absl::StatusOr<Url> hub = ParseUrl(flags.hub);
  const bool is_hub = hub.ok() && hub->origin() == origin;
  options.reader.credentials = {!flags.token.empty() ? flags.token
                                : is_hub             ? flags.hub_token
                                                     : std::string(),
                                origin};
  CurlOptions curl;
  curl.user_agent = absl::StrCat("atelier/", Version());
  curl.stall_timeout = flags.stall_timeout;
  options.connect = [curl] { return CreateCurlHttpClient(curl); };
}

}  // namespace atelier
