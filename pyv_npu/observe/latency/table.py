"""Stages, reasons and counts of a run's submissions: the object `latency` of the JSON schema (docs/results.md)."""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyv_npu.observe.latency import STAGES

if TYPE_CHECKING:
    from pyv_npu.observe.latency.fold import Fold
    from pyv_npu.observe.latency.percentiles import Distribution
    from pyv_npu.observe.latency.rows import Integers, Submissions


class Latency:
    """Latency of the submissions of a run, without the first `warmup` submissions."""

    def __init__(
        self, accepted: "Submissions | None", rejected: int, t0_source: str, warmup: int = 0, lost: int = 0
    ) -> None:
        """`accepted`: None if none was accepted. `lost`: number that left the core and were never accepted, due to a
        soft reset or an ignored doorbell."""
        self._accepted = accepted
        self.t0_source = t0_source
        self._warmup = warmup
        self.rejected = rejected
        self.lost = lost

    def _chunks(self) -> "Iterator[tuple[Integers, int]]":
        """Yield (rows, number of warm-up rows) of nonempty chunks."""
        remaining = self._warmup
        for rows in self.accepted.chunks():
            if len(rows):
                yield rows, min(remaining, len(rows))
                remaining -= min(remaining, len(rows))

    @cached_property
    def _fold(self) -> "Fold":
        from pyv_npu.observe.latency.fold import Fold  # needed only for programs that submit

        fold = Fold()
        for rows, warmup in self._chunks():
            fold.add(rows, warmup)
        return fold

    @property
    def any(self) -> bool:
        """True if a submission was accepted."""
        return self._accepted is not None and self._fold.first is not None

    @cached_property
    def accepted(self) -> "Submissions":
        """All accepted submissions, with warm-up and failed submissions."""
        from pyv_npu.observe.latency.rows import Submissions

        return Submissions() if self._accepted is None else self._accepted

    @property
    def warmup(self) -> int:
        """Number of warm-up submissions."""
        return sum(warmup for _, warmup in self._chunks()) if self._warmup else 0

    @property
    def errors(self) -> int:
        """Number of accepted submissions that ended in an error."""
        return self._fold.errors if self.any else 0

    @cached_property
    def submissions(self) -> "Submissions":
        """Accepted submissions without an error, in the order of acceptance."""
        from pyv_npu.observe.latency.rows import COLUMN, Submissions

        def chunks() -> "Iterator[Integers]":
            for rows, warmup in self._chunks():
                yield rows[warmup:][rows[warmup:, COLUMN["error"]] == 0]

        return Submissions(chunks)

    def stage(self, name: str) -> "Distribution":
        """Return the cycles of a stage of `STAGES`."""
        from pyv_npu.observe.latency.percentiles import Distribution

        return Distribution(self._fold.stages[name])

    @property
    def headline(self) -> "Distribution":
        """Distribution of t_submit, or of t_submit_prebuilt if all descriptors are prebuilt."""
        submit_stage = self.stage("t_submit")
        return submit_stage if len(submit_stage) else self.stage("t_submit_prebuilt")

    @property
    def p50(self) -> int:
        """P50 of `headline`, cycles. So are `p95` and `p99`; `p99` is None for fewer than 100 samples."""
        return self.headline.p50

    @property
    def p95(self) -> int:
        return self.headline.p95

    @property
    def p99(self) -> int | None:
        return self.headline.p99

    def __repr__(self) -> str:
        return f"<Latency of {len(self.submissions)} submissions: {self.headline!r}>"

    def text(self) -> str:
        """Format a row of figures for each stage with samples, in core cycles."""
        from pyv_npu.observe.latency.percentiles import figures_text

        return figures_text({name: summary for name in STAGES if (summary := self.stage(name).summary())})

    def _repr_html_(self) -> str:
        """Return the table of the stages for notebooks."""
        return f"<pre>{self.text()}</pre>"

    def reasons(self, stage: str = "t_submit") -> dict[str, int]:
        """Return reason -> cycles, summed over the submissions of `t_submit` or `t_submit_prebuilt`; the sum over
        reasons is the total of the stage."""
        from pyv_npu.observe.latency.rows import Reason

        totals = self._fold.reasons.get(stage)
        cycles = [0] * len(Reason) if totals is None else totals.tolist()
        return {reason.value: total for reason, total in zip(Reason, cycles, strict=True)}

    def parts(self, cycles: int) -> dict[str, int] | None:
        """Return the cycles of a run before its first submission, from there to the last completion, and after it.

        The parts add up to `cycles`. None without an accepted submission.
        """
        if not self.any:
            return None
        fold = self._fold
        assert fold.first is not None
        last = cycles if fold.unfinished else max(fold.first, min(cycles, fold.last))
        return {"before_submission": fold.first, "work": last - fold.first, "after_completion": cycles - last}

    def by_call_site(self) -> "list[tuple[int, Distribution]]":
        """Return (call site, cycles from start to acceptance), those with most submissions first."""
        from pyv_npu.observe.latency.percentiles import Distribution

        rows = [(site, Distribution(counts)) for site, counts in sorted(self._fold.sites.items())]
        return sorted(rows, key=lambda row: -len(row[1]))

    def to_json(self) -> dict[str, Any] | None:
        """Return the object `latency`; None if nothing was submitted."""
        if not (self.any or self.rejected or self.lost):
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
