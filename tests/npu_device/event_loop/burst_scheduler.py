"""A plain scheduler of DRAM bursts, written apart from the product: one dictionary a bank, one loop a burst.

Times are DRAM cycles. It follows docs/npu-timing.md, "Timed DRAM", and shares nothing with the event loop but the
numbers of a device.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any


@dataclass
class Transfer:
    """A transfer: `rows` rows of `size` bytes, `stride` apart, requested at `arrival`."""

    arrival: int
    write: bool
    address: int
    rows: int
    size: int
    stride: int
    alignment: int
    cuts: list[tuple[int, list[int]]] = field(default_factory=list)
    """(channel, bursts) of its row segments that are in no queue."""
    queued: int = 0
    end: int = 0
    finish: int | None = None


class Channel:
    def __init__(self, refresh: int) -> None:
        self.queue: list[tuple[Transfer, list[int], int]] = []
        self.waiting: list[Transfer] = []
        self.banks: dict[Any, dict[str, Any]] = {}
        self.columns: list[tuple[int, bool, int, int]] = []
        """(tick, write, rank, group) of reads and writes."""
        self.activations: list[tuple[int, int, int]] = []
        """(tick, rank, group)."""
        self.refresh = refresh
        self.ready = 0
        self.passed = 0


class BurstScheduler:
    """Serves transfers in the order in which `request` hears of them."""

    def __init__(self, timing: Any, channels: int, interleave: int, mapping: str, hashed: bool, page: str, depth: int,
                 passes: int) -> None:  # fmt: skip
        self.t, self.n, self.interleave, self.mapping = timing, channels, interleave, mapping
        self.hashed, self.page, self.depth, self.passes = hashed, page, depth, passes
        self.channels = [Channel(timing.refi) for _ in range(channels)]

    # -- addresses -------------------------------------------------------------------------------------------

    def channel(self, address: int) -> int:
        bits = self.n.bit_length() - 1
        block = address // self.interleave
        if not self.hashed or not bits:
            return block % self.n
        digits = []
        while block:
            digits.append(block % self.n)
            block //= self.n
        result = 0
        for digit in digits[:32]:
            result ^= digit
        return result

    def place(self, burst: int) -> tuple[int, int, int, int]:
        """(rank, group, bank, row)."""
        sizes = {"column": self.t.row_bytes // self.t.burst_bytes, "group": self.t.groups, "bank": self.t.banks,
                 "rank": self.t.ranks}  # fmt: skip
        value: dict[str, int] = {}
        for name in reversed(self.mapping.split("-")):
            if name == "row":
                value[name] = burst
            else:
                burst, value[name] = divmod(burst, sizes[name])
        inside = value["group"] * self.t.banks + value["bank"]
        if self.hashed:
            inside ^= value["row"] % (self.t.groups * self.t.banks)
        return value["rank"], inside // self.t.banks, inside % self.t.banks, value["row"]

    def segments(self, transfer: Transfer) -> list[tuple[int, list[int]]]:
        rows = [(transfer.address + i * transfer.stride, transfer.size) for i in range(transfer.rows)]
        if transfer.stride == transfer.size:
            rows = [(transfer.address, transfer.rows * transfer.size)]
        cuts: list[tuple[int, list[int]]] = []
        for start, size in rows:
            low = start // transfer.alignment * transfer.alignment
            high = -(-(start + size) // transfer.alignment) * transfer.alignment
            last: Any = None
            for byte in range(low, high, min(self.t.burst_bytes, transfer.alignment)):
                block, rest = divmod(byte, self.interleave)
                inner = (block // self.n if self.n > 1 else block) * self.interleave + rest
                key = (self.channel(byte), inner // self.t.row_bytes, block if self.n > 1 else 0)
                burst = inner // self.t.burst_bytes
                if key == last:
                    if cuts[-1][1][-1] != burst:
                        cuts[-1][1].append(burst)
                else:
                    cuts.append((key[0], [burst]))
                last = key
        return cuts

    # -- time ------------------------------------------------------------------------------------------------

    def request(self, transfer: Transfer) -> None:
        self.run(transfer.arrival)
        transfer.cuts = self.segments(transfer)
        self.push(transfer, transfer.arrival)

    def push(self, transfer: Transfer, tick: int) -> None:
        while transfer.cuts:
            index, bursts = transfer.cuts[0]
            channel = self.channels[index]
            if len(channel.queue) == self.depth:
                channel.waiting.append(transfer)
                return
            transfer.cuts.pop(0)
            transfer.queued += 1
            channel.queue.append((transfer, bursts, tick))

    def run(self, until: int | None = None) -> None:
        """Serve what is chosen before a tick."""
        while True:
            due = [(max(c.ready, c.queue[0][2]), i) for i, c in enumerate(self.channels) if c.queue]
            if not due or (until is not None and min(due)[0] >= until):
                return
            now, index = min(due)
            channel = self.channels[index]
            pick = 0
            if channel.passed < self.passes:
                for i, (transfer, bursts, _) in enumerate(channel.queue):
                    rank, group, bank, row = self.place(bursts[0])
                    is_open = channel.banks.get((rank, group, bank), {}).get("row") == row
                    if is_open and transfer.write == (channel.columns[-1][1] if channel.columns else False):
                        pick = i
                        break
            channel.passed = channel.passed + 1 if pick else 0
            transfer, bursts, since = channel.queue.pop(pick)
            for burst in bursts:
                transfer.end = max(transfer.end, self.serve(channel, burst, transfer.write, since))
            if self.page == "closed":
                for each in channel.banks.values():
                    self.close(each)
            transfer.queued -= 1
            if not transfer.queued and not transfer.cuts:
                transfer.finish = transfer.end
            if channel.waiting:
                self.push(channel.waiting.pop(0), now)

    def close(self, bank: dict[str, Any]) -> None:
        if bank["row"] is not None:
            bank["free"] = max(bank["free"], bank["close"] + self.t.rp)
            bank["row"] = None

    def serve(self, channel: Channel, burst: int, write: bool, since: int) -> int:
        t = self.t
        rank, group, number, row = self.place(burst)
        bank = channel.banks.setdefault((rank, group, number), {"row": None, "free": 0, "open": 0, "close": 0})
        while True:
            opened = None
            limits = [since]
            for tick, was_write, other_rank, other_group in channel.columns[-64:]:
                same_group = (other_rank, other_group) == (rank, group)
                data = tick + (t.cwl if was_write else t.cl)
                if same_group:
                    limits.append(tick + t.ccd_l)
                if was_write and not write and other_rank == rank:
                    limits.append(data + t.burst + (t.wtr_l if same_group else 0))
                    limits.append(data + t.burst + t.wtr_s)
            if channel.columns:
                tick, was_write, other_rank, _ = channel.columns[-1]
                gap = max(t.burst, t.ccd_s) + (t.rank_gap if other_rank != rank else 0)
                limits.append(tick + gap)
                if was_write and not write:
                    limits.append(tick + gap + t.cwl - t.cl)
                if write and not was_write:
                    limits.append(tick + t.rtw)
            if bank["row"] == row:
                limits.append(bank["open"])
            else:
                begins = [since, bank["free"]]
                if bank["row"] is not None:
                    begins.append(max(since, bank["close"]) + t.rp)
                openings = [(tick, g) for tick, r, g in channel.activations if r == rank]
                begins += [tick + t.rrd_s for tick, _ in openings[-1:]]
                begins += [tick + t.rrd_l for tick, g in openings if g == group]
                begins += [openings[-4][0] + t.faw] if len(openings) >= 4 else []
                opened = max(begins)
                limits.append(opened + t.rcd)
            column = max(limits)
            if not t.refi or column < channel.refresh:
                break
            begin = channel.refresh
            while begin + t.refi <= column:
                begin += t.refi
            channel.refresh = begin + t.refi
            for other in channel.banks.values():
                if other["row"] is not None:
                    begin = max(begin, other["close"] + t.rp)
            for key in [(r, g, b) for r in range(t.ranks) for g in range(t.groups) for b in range(t.banks)]:
                other = channel.banks.setdefault(key, {"row": None, "free": 0, "open": 0, "close": 0})
                other["row"] = None
                other["free"] = max(other["free"], begin + t.rfc)
        if opened is not None:
            bank.update(row=row, free=opened + t.ras + t.rp, open=opened + t.rcd, close=opened + t.ras)
            channel.activations.append((opened, rank, group))
        channel.columns.append((column, write, rank, group))
        channel.ready = column
        data_end = column + (t.cwl if write else t.cl) + t.burst
        bank["close"] = max(bank["close"], data_end + t.wr if write else column + t.rtp)
        return data_end


def ticks(clock: Fraction, cycle: int) -> int:
    return ceil(cycle * clock)


def cycles(clock: Fraction, tick: int) -> int:
    return ceil(tick / clock)
