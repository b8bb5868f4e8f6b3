"""Stages, reasons and counts of a run's submissions: the `latency` object of the JSON schema (docs/results.md)."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyv_npu.observe.latency.percentiles import Distribution
    from pyv_npu.observe.latency.rows import Submissions


class Stage(NamedTuple):
    """The cycles between two stamps of a submission."""

    first: str
    last: str
    prebuilt: bool | None
    """Of which submissions: those whose descriptor lay in memory already, the others, or all."""


STAGES = {
    "t_submit": Stage("t0", "t2", False),
    "t_submit_prebuilt": Stage("t0", "t2", True),
    "core_busy": Stage("t0", "t1", False),
    "queue_wait": Stage("t2", "t3", False),
    "execute": Stage("t3", "t4", False),
    "notify": Stage("t4", "t7", False),
    "arrival_wait": Stage("t_arr", "t0", None),
    "response": Stage("t_arr", "t2", None),
}


class Latency:
    """The submissions of one run, without the first `warmup` of them."""

    def __init__(
        self, accepted: "Submissions | None", rejected: int, t0_source: str, warmup: int = 0, lost: int = 0
    ) -> None:
        """`accepted`: None where the program did not use the NPU. `lost`: left the core and were never accepted, by a
        soft reset or because the doorbell was ignored."""
        self._accepted = accepted
        self._submissions = accepted
        self.t0_source = t0_source
        self.warmup = 0
        self.rejected = rejected
        self.lost = lost
        self.errors = 0
        if accepted is not None and len(accepted):
            self.warmup = min(warmup, len(accepted))
            kept = accepted[warmup:]
            good = kept.column("error") == 0
            self.errors = len(kept) - int(good.sum())
            self._submissions = kept.where(good)

    @property
    def any(self) -> bool:
        """Whether anything was accepted."""
        return self._accepted is not None and len(self._accepted) > 0

    @property
    def accepted(self) -> "Submissions":
        """All that were, with those that warm up or end in an error."""
        if self._accepted is None:
            self._accepted = _none()
        return self._accepted

    @property
    def submissions(self) -> "Submissions":
        """Accepted and free of error, in the order of acceptance."""
        if self._submissions is None:
            self._submissions = _none()
        return self._submissions

    def stage(self, name: str) -> "Distribution":
        """Cycles of a stage of `STAGES`."""
        from pyv_npu.observe.latency.percentiles import Distribution  # as all of this is, for programs that submit

        stage = STAGES[name]
        chosen = self._of(stage)
        return Distribution((chosen.column(stage.last) - chosen.column(stage.first)).tolist())

    def _of(self, stage: Stage) -> "Submissions":
        """Submissions that have been through a stage."""
        from pyv_npu.observe.latency.rows import NONE

        all_of = self.submissions
        chosen = (all_of.column(stage.first) != NONE) & (all_of.column(stage.last) != NONE)
        if stage.prebuilt is not None:
            chosen &= (all_of.column("prebuilt") != 0) == stage.prebuilt
        return all_of.where(chosen)

    @property
    def headline(self) -> "Distribution":
        """t_submit; where every descriptor lay in memory, t_submit_prebuilt."""
        written = self.stage("t_submit")
        return written if len(written) else self.stage("t_submit_prebuilt")

    @property
    def p50(self) -> int:
        """Cycles of `headline`, as `p95` and `p99`; the latter is None for fewer than 100 samples."""
        return self.headline.p50

    @property
    def p95(self) -> int:
        return self.headline.p95

    @property
    def p99(self) -> int | None:
        return self.headline.p99

    def __repr__(self) -> str:
        return f"<Latency of {len(self.submissions)} submissions: {self.headline!r}>"

    def _repr_html_(self) -> str:
        """Stages and their figures for notebooks."""
        from pyv_npu.text import MISSING, html_table

        shown = {name: self.stage(name).summary() for name in STAGES}
        figures = ("n", "p50", "p95", "p99", "min", "max")
        rows = [
            [name, *(MISSING if row[figure] is None else f"{row[figure]:,}" for figure in figures)]
            for name, row in shown.items()
            if row
        ]
        return html_table(["core cycles", *figures], rows)

    def reasons(self, stage: str = "t_submit") -> dict[str, int]:
        """Cycles by reason, summed over the submissions of `t_submit` or `t_submit_prebuilt`; they add up to its
        total."""
        from pyv_npu.observe.latency.rows import Reason

        totals = self._of(STAGES[stage]).reasons().sum(axis=0).tolist()
        return {reason.value: cycles for reason, cycles in zip(Reason, totals, strict=True)}

    def parts(self, cycles: int) -> dict[str, int] | None:
        """Where the cycles of a run lie: before its first submission, from there to the last completion, and after it.

        They add up to `cycles`. None where nothing was accepted.
        """
        if not self.any:
            return None
        import numpy as np

        from pyv_npu.observe.latency.rows import NONE

        starts, completions = self.accepted.column("t0"), self.accepted.column("t4")
        begins = np.where(starts == NONE, self.accepted.column("leave"), starts)
        first = int(begins.min())
        last = cycles if (completions == NONE).any() else max(first, min(cycles, int(completions.max())))
        return {"before_submission": first, "work": last - first, "after_completion": cycles - last}

    def by_call_site(self) -> "list[tuple[int, Distribution]]":
        """Call sites, those with most submissions first, with the cycles from start to accepted of each."""
        from pyv_npu.observe.latency.percentiles import Distribution

        sites = self.submissions.column("call_site")
        found = {site: self.submissions.where(sites == site) for site in sorted(set(sites.tolist()))}
        rows = [
            (site, Distribution([each for each in (s.span("t0", "t2") for s in chosen) if each is not None]))
            for site, chosen in found.items()
        ]
        return sorted((row for row in rows if len(row[1])), key=lambda row: -len(row[1]))

    def to_json(self) -> dict[str, Any] | None:
        """None when nothing was submitted at all."""
        if not self._submissions and not self.errors and not self.rejected and not self.lost:
            return None
        stages = {name: self.stage(name).summary() for name in STAGES}
        headline = stages["t_submit"]
        return {
            "n": headline["n"] if headline else 0,
            "n_rejected": self.rejected,
            "n_lost": self.lost,
            "n_errors": self.errors,
            "n_warmup": self.warmup,
            "t0_source": self.t0_source,
            "stages": stages,
            "reasons": self.reasons(),
            "reasons_prebuilt": self.reasons("t_submit_prebuilt"),
        }


def _none() -> "Submissions":
    from pyv_npu.observe.latency.rows import Submissions  # and what it needs: most firmware has none

    return Submissions.of(())
