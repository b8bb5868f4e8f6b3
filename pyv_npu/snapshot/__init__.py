"""Snapshots of the whole machine: a run resumes from a snapshot as if it had never stopped."""

from pyv_npu.snapshot.snapshot import Snapshot

__all__ = ["Snapshot"]
