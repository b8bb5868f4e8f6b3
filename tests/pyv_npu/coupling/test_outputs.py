"""The hash of what the NPU left in memory: pages of scratchpads that are not zero, with their addresses."""

import hashlib

from npu_device.abi.memory_map import SPM_BASE
from npu_device.trace.stream import NOTHING
from pyv_ext.bus.memory import PAGE
from pyv_npu.config import load
from pyv_npu.platform import Platform


def test_nothing_has_the_hash_of_nothing() -> None:
    platform = Platform(load().config)
    assert hashlib.sha256().hexdigest() == NOTHING == platform.outputs.sha256() == platform.events.hexdigest()
    platform.bus.poke(SPM_BASE + 5 * PAGE, bytes(100))
    assert platform.outputs.sha256() == NOTHING


def test_content_and_place_count() -> None:
    found = set()
    for page, data in ((3, b"x"), (4, b"x"), (3, b"y"), (511, b"x")):
        platform = Platform(load().config)
        platform.bus.poke(SPM_BASE + page * PAGE + 7, data)
        expected = hashlib.sha256(f"{SPM_BASE + page * PAGE:x}..{SPM_BASE + (page + 1) * PAGE:x}:".encode())
        expected.update(bytes(7) + data + bytes(PAGE - 8))
        assert platform.outputs.sha256() == expected.hexdigest()
        found.add(platform.outputs.sha256())
    assert len(found) == 4
