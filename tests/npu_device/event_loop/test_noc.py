"""The NoC: links of each topology, routes and hops, up to 12 clusters; closed forms."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_graphs import listed
from npu_rig import DRAM, SPM

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.memory_map import MAX_CLUSTERS, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, DramConfig, NocConfig, NpuConfig, SpmConfig, TeConfig, check
from npu_device.cost.topology import MAX_HOPS, MAX_NOC_LINKS, network_of
from npu_device.levels.runner import Listed
from npu_device.trace.events import Kind, What, unit_code, unit_index, unit_kind

GHZ = 1_200_000_000
SIZE = 4096


def config(topology: str, clusters: int, rate: int | None = 32, channels: int = 1, **more: Any) -> NpuConfig:
    """Each link gives `rate` bytes per cycle, and nothing else is a limit."""
    of = NpuConfig(
        clusters=clusters, spm=SpmConfig(size=1 << 16, port=None), te=TeConfig(count=1),
        dma=DmaConfig(channels=more.pop("dma", 2), bytes_per_cycle=None),
        dram=DramConfig(size=1 << 20, latency=10, bytes_per_second=None, channels=channels, interleave=256),
        noc=NocConfig(latency=4, bytes_per_second=None if rate is None else rate * GHZ, topology=topology,
                      hop_latency=3),
    )  # fmt: skip
    check(of)
    return of


def move(cluster: int, write: bool = False, size: int = SIZE, at: int = 0, stream: int = 0) -> Listed:
    scratchpad, memory = SPM + cluster * SPM_CLUSTER_STRIDE, DRAM + (1 << 15) + cluster * SIZE + at
    ends = (scratchpad, memory) if write else (memory, scratchpad)
    return Listed(
        Descriptor(opcode=Opcode.STORE if write else Opcode.LOAD, tile_m=1, tile_k=size, type_in0=DataType.INT8,
                   in0_addr=ends[0], out_addr=ends[1], cluster=cluster, stream=stream)
    )  # fmt: skip


def end_cycles(commands: list[Listed], of: NpuConfig, analytic: bool = False) -> list[int]:
    trace = listed(commands, of, True, analytic=analytic)
    done = {event["ticket"]: event["cycle"] for event in trace.of(What.DMA_END)}
    return [done[ticket] for ticket in trace.run.tickets]


@pytest.mark.parametrize("analytic", [False, True])
@pytest.mark.parametrize("clusters", [2, 5, 12])
def test_clusters_share_one_link_and_have_one_each_of_a_crossbar(clusters: int, analytic: bool) -> None:
    """Reads: 10 + 4 cycles, then data."""
    commands = [move(cluster, stream=cluster) for cluster in range(clusters)]
    ends = end_cycles(commands, config("link", clusters), analytic)
    assert 0 <= max(ends) - (14 + clusters * SIZE // 32) <= 1
    assert len(set(ends)) <= 3, "equal parts, but for what does not divide"
    assert set(end_cycles(commands, config("crossbar", clusters), analytic)) == {14 + SIZE // 32}


def test_a_mesh_adds_hops_to_the_farthest_port() -> None:
    """Four clusters, 2 x 2, both rows with a port; a channel at each, in turn by 256 bytes."""
    of = config("mesh", 4, None, channels=2)
    assert [end_cycles([move(cluster)], of) for cluster in range(4)] == [[14 + 3 * hops] for hops in (2, 3, 2, 3)]
    assert [end_cycles([move(cluster, size=256)], of) for cluster in range(4)] == [
        [14 + 3 * hops] for hops in (1, 2, 2, 3)
    ]


def test_routes_of_a_mesh_share_links_only_where_they_cross() -> None:
    """One channel, at the port of row 0: clusters 0 and 1 share its link and that of row 0; reads and writes do not."""
    of = config("mesh", 4)
    alone = [end_cycles([move(cluster)], of)[0] for cluster in range(2)]
    assert alone == [14 + 3 + SIZE // 32, 14 + 6 + SIZE // 32]
    ends = end_cycles([move(0), move(1, stream=1)], of)
    assert max(ends) >= 14 + 3 + 2 * SIZE // 32
    assert end_cycles([move(0), move(0, True, at=1 << 14, stream=1)], of)[0] == alone[0]


@given(st.integers(1, MAX_CLUSTERS))
def test_a_mesh_has_a_route_from_each_cluster_to_each_port(clusters: int) -> None:
    network = network_of(config("mesh", clusters))
    used = set()
    for routes in network.routes:
        assert len(routes) == network.ports
        for route in routes:
            assert len(route.reads) == len(route.writes) == route.hops <= MAX_HOPS
            assert not set(route.reads) & set(route.writes)
            used |= {*route.reads, *route.writes}
    assert used == set(range(network.links))
    assert network.links <= MAX_NOC_LINKS


def test_twelve_clusters_of_sixteen_channels() -> None:
    """Banks have indices beyond 8 bits."""
    of = NpuConfig(
        clusters=12, dma=DmaConfig(channels=16), spm=SpmConfig(size=1 << 16, banks=64), te=TeConfig(count=16)
    )
    check(of)
    commands = [
        Listed(move(cluster, size=64, at=64 * index, stream=index).descriptor.with_(
            out_addr=SPM + cluster * SPM_CLUSTER_STRIDE + 64 * index))
        for cluster in range(12) for index in range(16)
    ]  # fmt: skip
    assert all(Descriptor.unpack(each.descriptor.pack()) == each.descriptor for each in commands)
    trace = listed(commands, of, True)
    begun = [event["unit"] for event in trace.of(What.DMA_BEGIN)]
    assert {unit_index(unit) // 16 for unit in begun} == set(range(12))
    assert {unit_kind(unit) for unit in begun} == {Kind.DMA}
    used = {unit_index(event["unit"]) for event in trace.of(What.BANK_BUSY)}
    assert used == {64 * cluster for cluster in range(12)}
    assert len(trace.run.device.counters.up_to_date().to_json()["bank_busy"]) == 768


def test_codes_of_units_keep_those_of_256() -> None:
    for kind in Kind:
        for index in (0, 1, 255, 256, 767, 4095):
            code = unit_code(kind, index)
            assert (unit_kind(code), unit_index(code)) == (kind, index)
            assert code <= 0xFFFF
            assert index > 255 or code == kind << 8 | index
    codes = np.array([unit_code(Kind.BANK, 700)], np.uint16)
    assert (unit_kind(codes)[0], unit_index(codes)[0]) == (Kind.BANK, 700)


def test_words_of_four_clusters_have_not_changed() -> None:
    for cluster in range(4):
        op = int.from_bytes(Descriptor(opcode=3, rank=5, affinity=2, cluster=cluster).pack()[:4], "little")
        assert op == 3 | 5 << 16 | 2 << 26 | cluster << 30
    assert int.from_bytes(Descriptor(cluster=7).pack()[:4], "little") == 1 << 8 | 3 << 30
