"""Links of the network between clusters and DRAM, and the routes over them (docs/npu-timing.md, "NoC")."""

from fractions import Fraction
from math import isqrt
from typing import NamedTuple

from npu_device.abi.memory_map import MAX_CLUSTERS
from npu_device.config import NpuConfig


class Route(NamedTuple):
    """Route between a cluster and a memory port."""

    hops: int
    reads: tuple[int, ...]
    """Indices of the links that data of reads crosses."""
    writes: tuple[int, ...]


class Network(NamedTuple):
    """Links of a topology."""

    links: int
    ports: int
    """Number of memory ports; DRAM channel c is at port c % ports."""
    routes: tuple[tuple[Route, ...], ...]
    """Routes by cluster and memory port."""

    def hops(self, cluster: int) -> int:
        """Return the hops of a cluster to the farthest memory port."""
        return max(route.hops for route in self.routes[cluster])

    def link_shares(self, cluster: int, channels: int) -> tuple[Fraction, Fraction]:
        """Return the links that a byte crosses from DRAM to a cluster, and back, on average over DRAM channels."""
        routes = [self.routes[cluster][channel % self.ports] for channel in range(channels)]
        reads, writes = (sum(len(path) for path in ways) for ways in zip(*(route[1:] for route in routes), strict=True))
        return Fraction(reads, channels), Fraction(writes, channels)


def network_of(config: NpuConfig) -> Network:
    """Return the network of a configuration: a shared link, a link for each cluster, or a mesh."""
    clusters = config.clusters
    if config.noc.topology == "link":
        return Network(1, 1, ((Route(0, (0,), (0,)),),) * clusters)
    if config.noc.topology == "crossbar":
        return Network(clusters, 1, tuple((Route(0, (cluster,), (cluster,)),) for cluster in range(clusters)))
    return _mesh(clusters)


def width_of(clusters: int) -> int:
    """Return the number of columns of a mesh: the square root of `clusters`, rounded up."""
    side = isqrt(clusters)
    return side if side * side == clusters else side + 1


def _mesh(clusters: int) -> Network:
    """Return a mesh of clusters in row-major order with a memory port west of each row. Routes are XY; links are
    unidirectional."""
    width = width_of(clusters)
    rows = -(-clusters // width)
    index: dict[tuple[tuple[int, int], tuple[int, int]], int] = {}

    def link(begin: tuple[int, int], end: tuple[int, int]) -> int:
        return index.setdefault((begin, end), len(index))

    def path(begin: tuple[int, int], end: tuple[int, int]) -> tuple[int, ...]:
        links, (x, y) = [], begin
        while x != end[0]:
            step = 1 if end[0] > x else -1
            links.append(link((x, y), (x + step, y)))
            x += step
        while y != end[1]:
            step = 1 if end[1] > y else -1
            links.append(link((x, y), (x, y + step)))
            y += step
        return tuple(links)

    routes = []
    for cluster in range(clusters):
        position = cluster % width, cluster // width
        to_ports = []
        for row in range(rows):
            router, port = (0, row), (-1, row)
            reads = (link(port, router), *path(router, position))
            writes = (*path(position, router), link(router, port))
            to_ports.append(Route(len(reads), reads, writes))
        routes.append(tuple(to_ports))
    return Network(len(index), rows, tuple(routes))


MAX_NOC_LINKS = max(_mesh(clusters).links for clusters in range(1, MAX_CLUSTERS + 1))
MAX_HOPS = max(_mesh(clusters).hops(clusters - 1) for clusters in range(1, MAX_CLUSTERS + 1)) + MAX_CLUSTERS
"""Maximum number of links of a route."""
