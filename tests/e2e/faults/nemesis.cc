#include "tests/e2e/faults/nemesis.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "libs/base/status_macros.h"
#include "tests/e2e/faults/broken_memory.h"
#include "tests/e2e/faults/flood.h"

namespace atelier::faults {
namespace {

constexpr absl::Duration kHealTimeout = absl::Seconds(30);
// A tenth of a CPU, as a quota with a period of 20 ms gives it.
constexpr absl::Duration kRunTime = absl::Milliseconds(2);
constexpr absl::Duration kThrottledTime = absl::Milliseconds(18);

LinkRules RulesOf(const PlannedFault& fault) {
  LinkRules rules;
  switch (fault.kind) {
    case FaultKind::kLoss:
      rules.loss = 0.01 + 0.29 * fault.severity;
      break;
    case FaultKind::kDelay:
      rules.delay = absl::Milliseconds(1) + absl::Milliseconds(99) * fault.severity;
      break;
    case FaultKind::kDuplicate:
      rules.duplicate = 0.05 + 0.95 * fault.severity;
      break;
    case FaultKind::kReorder:
      rules.reorder = 0.05 + 0.45 * fault.severity;
      break;
    default:
      rules.blocked = true;
  }
  return rules;
}

}  // namespace

absl::Status Nemesis::Inject(const PlannedFault& fault) {
  absl::SleepFor(fault.after);
  ATELIER_RETURN_IF_ERROR(Do(fault));
  return cluster_.AwaitHealthy(kHealTimeout);
}

absl::Status Nemesis::Do(const PlannedFault& fault) {
  switch (fault.kind) {
    case FaultKind::kRollingRestart:
      return RestartAll(fault);
    case FaultKind::kAbort:
      load_.EndSome(1 + static_cast<int>(fault.severity * 4),
                    fault.gently ? StreamStep::kAbort : StreamStep::kHangUp);
      absl::SleepFor(fault.lasts);
      return absl::OkStatus();
    case FaultKind::kKillFrontend:
      return KillFrontend(fault);
    case FaultKind::kHalfOpen:
      return HalfOpen(fault);
    case FaultKind::kOutage:
      return Outage(fault);
    case FaultKind::kNan: {
      ATELIER_ASSIGN_OR_RETURN(const PoisonedWeights poisoned,
                               PoisonedWeights::Poison(cluster_.loner_store_dir()));
      absl::SleepFor(fault.lasts);
      return absl::OkStatus();
    }
    case FaultKind::kScribble:
      return Scribble(fault);
    case FaultKind::kFlood: {
      ATELIER_ASSIGN_OR_RETURN(const std::unique_ptr<Flood> flood,
                               Flood::Start(cluster_.WorkerAddress(fault.slice, 0)));
      absl::SleepFor(fault.lasts);
      return absl::OkStatus();
    }
    case FaultKind::kLoss:
    case FaultKind::kDelay:
    case FaultKind::kDuplicate:
    case FaultKind::kReorder:
    case FaultKind::kPartition:
    case FaultKind::kPartitionIn:
    case FaultKind::kPartitionOut:
      DoToLink(fault);
      return absl::OkStatus();
    default:
      return DoToWorker(fault);
  }
}

absl::Status Nemesis::DoToWorker(const PlannedFault& fault) {
  ServiceProcess& victim = cluster_.worker(fault.slice, fault.replica);
  switch (fault.kind) {
    case FaultKind::kKillStarting:
      return KillWhileStarting(fault);
    case FaultKind::kStop:
      victim.Signal(SIGSTOP);
      absl::SleepFor(fault.lasts);
      victim.Signal(SIGCONT);
      return absl::OkStatus();
    case FaultKind::kSlow:
      Slow(fault);
      return absl::OkStatus();
    case FaultKind::kCut:
      cluster_.proxy(fault.slice).Cut();
      return absl::OkStatus();
    case FaultKind::kSwallow:
      cluster_.proxy(fault.slice).Swallow(true);
      absl::SleepFor(fault.lasts);
      cluster_.proxy(fault.slice).Swallow(false);
      return absl::OkStatus();
    case FaultKind::kRefuse:
      cluster_.proxy(fault.slice).Refuse(true);
      absl::SleepFor(fault.lasts);
      cluster_.proxy(fault.slice).Refuse(false);
      return absl::OkStatus();
    case FaultKind::kKillIdle:
      load_.Pause();
      Kill(victim);
      load_.Resume();
      break;
    case FaultKind::kCrash:
      victim.Signal(SIGSEGV);
      victim.Wait();
      ++kills_;
      break;
    case FaultKind::kStopKill:
      victim.Signal(SIGSTOP);
      absl::SleepFor(fault.lasts);
      Kill(victim);
      break;
    case FaultKind::kKillTwo: {
      ServiceProcess& other =
          cluster_.worker((fault.slice + 1) % cluster_.shape().slices, fault.other_replica);
      victim.Signal(SIGKILL);
      Kill(other);
      Kill(victim);
      absl::SleepFor(fault.lasts);
      other.Start();
      victim.Start();
      return absl::OkStatus();
    }
    default:
      Kill(victim);
  }
  absl::SleepFor(fault.lasts);
  victim.Start();
  return absl::OkStatus();
}

void Nemesis::DoToLink(const PlannedFault& fault) {
  const LinkRules rules = RulesOf(fault);
  if (fault.kind != FaultKind::kPartitionOut) link_->SetRules(Link::kToFar, rules);
  if (fault.kind != FaultKind::kPartitionIn) link_->SetRules(Link::kToNear, rules);
  absl::SleepFor(fault.lasts);
  link_->Mend();
}

void Nemesis::Kill(ServiceProcess& process) {
  process.Kill();
  ++kills_;
}

absl::Status Nemesis::KillWhileStarting(const PlannedFault& fault) {
  ServiceProcess& victim = cluster_.worker(fault.slice, fault.replica);
  Kill(victim);
  victim.Start();
  absl::SleepFor(fault.lasts);
  ATELIER_RETURN_IF_ERROR(victim.CheckAlive());
  Kill(victim);
  victim.Start();
  return absl::OkStatus();
}

absl::Status Nemesis::RestartAll(const PlannedFault& fault) {
  for (ServiceProcess* worker : cluster_.Workers()) {
    worker->Signal(SIGTERM);
    if (const int status = worker->Wait(); status != 0) {
      return absl::InternalError(
          absl::StrCat(worker->name(), " ended with status ", status, " after SIGTERM"));
    }
    absl::SleepFor(fault.lasts);
    worker->Start();
    ATELIER_RETURN_IF_ERROR(cluster_.AwaitHealthy(kHealTimeout));
  }
  return absl::OkStatus();
}

absl::Status Nemesis::KillFrontend(const PlannedFault& fault) {
  ServiceProcess& victim = cluster_.frontend(fault.frontend);
  excuses_.Open(fault.frontend);
  cluster_.ForgetFrontendAddress(fault.frontend);
  Kill(victim);
  absl::SleepFor(fault.lasts);
  for (ServiceProcess* worker : cluster_.Workers()) {
    ATELIER_RETURN_IF_ERROR(worker->CheckAlive());
  }
  victim.Start();
  const absl::Status healed = cluster_.AwaitHealthy(kHealTimeout);
  excuses_.Close(fault.frontend);
  return healed;
}

absl::Status Nemesis::HalfOpen(const PlannedFault& fault) {
  ServiceProcess& victim = cluster_.worker(fault.slice, cluster_.shape().replicas - 1);
  LinkRules nothing_passes;
  nothing_passes.blocked = true;
  link_->SetBoth(nothing_passes);
  Kill(victim);
  victim.Start();
  absl::SleepFor(fault.lasts);
  while (!victim.Ready()) {
    ATELIER_RETURN_IF_ERROR(victim.CheckAlive());
    absl::SleepFor(absl::Milliseconds(5));
  }
  link_->Mend();
  return absl::OkStatus();
}

absl::Status Nemesis::Outage(const PlannedFault& fault) {
  excuses_.OpenAll();
  for (int replica = 0; replica < cluster_.shape().replicas; ++replica) {
    Kill(cluster_.worker(fault.slice, replica));
  }
  absl::SleepFor(fault.lasts);
  for (int replica = 0; replica < cluster_.shape().replicas; ++replica) {
    cluster_.worker(fault.slice, replica).Start();
  }
  const absl::Status healed = cluster_.AwaitHealthy(kHealTimeout);
  excuses_.CloseAll();
  return healed;
}

// Who reads is stopped, so that what is overwritten has not been read yet.
absl::Status Nemesis::Scribble(const PlannedFault& fault) {
  const bool requests = fault.severity < 0.5;
  ServiceProcess& victim =
      requests ? cluster_.worker(fault.slice, 0) : cluster_.frontend(fault.frontend);
  victim.Signal(SIGSTOP);
  absl::SleepFor(fault.lasts);
  const absl::StatusOr<int> memories =
      ScribbleOverCalls(victim.pid(), requests ? ShmSide::kRequests : ShmSide::kReplies,
                        static_cast<uint64_t>(fault.severity * 0x1p53));
  victim.Signal(SIGCONT);
  ATELIER_RETURN_IF_ERROR(memories.status());
  if (*memories > 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(victim.name(), " shares no memory"));
}

void Nemesis::Slow(const PlannedFault& fault) {
  ServiceProcess& victim = cluster_.worker(fault.slice, fault.replica);
  for (const absl::Time end = absl::Now() + fault.lasts; absl::Now() < end;) {
    victim.Signal(SIGSTOP);
    absl::SleepFor(kThrottledTime);
    victim.Signal(SIGCONT);
    absl::SleepFor(kRunTime);
  }
}

}  // namespace atelier::faults
