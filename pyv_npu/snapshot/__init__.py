"""Snapshots of the whole machine: a run goes on from a snapshot as if it had never stopped."""

from pyv_npu.snapshot.snapshot import Snapshot

__all__ = ["Snapshot"]
