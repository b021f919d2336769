#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace atelier {

// When a call leaves a replica that is late, and how long a bad replica is left alone. Only matters
// where a shard has several replicas.
struct FailoverOptions {
  // A replica is late when it, or the other one that would be asked, would usually have answered a
  // call of about that size twice over (2 x the lower of the 95th percentiles of their answers),
  // and at least this long.
  absl::Duration min_patience = absl::Milliseconds(5);
  // The same while nothing is known of either, and the most of what is only guessed from calls of
  // other sizes.
  absl::Duration first_patience = absl::Milliseconds(250);
  // A late call goes to another replica as well, while such calls are at most this share of all.
  double hedge_budget = 0.05;
  // Later than this (and 4 x the patience) the replica is stalled: the call goes elsewhere, budget
  // or not, and the replica is ejected.
  absl::Duration min_stall = absl::Milliseconds(50);
  // A replica that is late, or takes longer than half of this, is asked for a sign of life, again
  // and again while it takes longer. One that gives none for so long is taken for frozen or cut
  // off, which is as being stalled, however long its answer might take.
  absl::Duration longest_silence = absl::Milliseconds(50);
  // A replica that was overtaken or failed so often in a row is ejected: it gets no calls while
  // others live, but a probe when its time is over; one that fails doubles the time.
  int faults_until_ejection = 3;
  absl::Duration first_ejection = absl::Milliseconds(250);
  absl::Duration longest_ejection = absl::Seconds(10);
  // When fewer than this share of a shard's live replicas would be left, ejections are ignored.
  double panic_threshold = 0.5;
  // How long a call waits for one of several replicas to come back when none of them lives: about
  // the longest pause between two attempts to reconnect.
  absl::Duration reconnect_grace = absl::Seconds(3);

  absl::Status Validate() const;
};

}  // namespace atelier
