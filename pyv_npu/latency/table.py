"""Stages, reasons and counts of a run's submissions: the `latency` object of the JSON schema (specification 70)."""

from collections.abc import Callable, Sequence
from typing import Any

from pyv_npu.latency.percentiles import Distribution
from pyv_npu.latency.submission import Reason, Submission

STAGES: dict[str, Callable[[Submission], int | None]] = {
    "t_submit": lambda s: None if s.prebuilt else s.span("t0", "t2"),
    "t_submit_prebuilt": lambda s: s.span("t0", "t2") if s.prebuilt else None,
    "core_busy": lambda s: None if s.prebuilt else s.span("t0", "t1"),
    "queue_wait": lambda s: None if s.prebuilt else s.span("t2", "t3"),
    "execute": lambda s: None if s.prebuilt else s.span("t3", "t4"),
    "notify": lambda s: None if s.prebuilt else s.span("t4", "t7"),
    "arrival_wait": lambda s: s.span("t_arr", "t0"),
    "response": lambda s: s.span("t_arr", "t2"),
}
"""Cycles of each stage of one submission, None where it does not apply."""


class Latency:
    """The submissions of one run, without the first `warmup` of them."""

    def __init__(self, accepted: Sequence[Submission], rejected: int, t0_source: str, warmup: int = 0) -> None:
        self.accepted = accepted
        """All of them, with those that warm up or end in an error."""
        kept = list(accepted[warmup:])
        self.t0_source = t0_source
        self.warmup = min(warmup, len(accepted))
        self.rejected = rejected
        self.errors = sum(1 for submission in kept if submission.error)
        self.submissions = [submission for submission in kept if not submission.error]
        """Accepted and free of error, in the order of acceptance."""

    def stage(self, name: str) -> Distribution:
        """Cycles of a stage of `STAGES`."""
        measure = STAGES[name]
        values = (measure(submission) for submission in self.submissions)
        return Distribution(value for value in values if value is not None)

    @property
    def headline(self) -> Distribution:
        """t_submit; where every descriptor lay in memory, t_submit_prebuilt."""
        written = self.stage("t_submit")
        return written if len(written) else self.stage("t_submit_prebuilt")

    @property
    def p50(self) -> int:
        """Of `headline`, as `p95` and `p99`, which refuses fewer than 100 samples."""
        return self.headline.p50

    @property
    def p95(self) -> int:
        return self.headline.p95

    @property
    def p99(self) -> int:
        return self.headline.p99

    def reasons(self, stage: str = "t_submit") -> dict[str, int]:
        """Cycles by reason, summed over the submissions of `t_submit` or `t_submit_prebuilt`; they add up to its
        total."""
        total = {reason.value: 0 for reason in Reason}
        for submission in self.submissions:
            if STAGES[stage](submission) is not None:
                for reason, cycles in submission.reasons.items():
                    total[reason.value] += cycles
        return total

    def to_json(self) -> dict[str, Any] | None:
        """None when nothing was submitted at all."""
        if not self.submissions and not self.errors and not self.rejected:
            return None
        stages = {name: self.stage(name).summary() for name in STAGES}
        headline = stages["t_submit"]
        return {
            "n": headline["n"] if headline else 0,
            "n_rejected": self.rejected,
            "n_errors": self.errors,
            "n_warmup": self.warmup,
            "t0_source": self.t0_source,
            "stages": stages,
            "reasons": self.reasons(),
            "reasons_prebuilt": self.reasons("t_submit_prebuilt"),
        }
