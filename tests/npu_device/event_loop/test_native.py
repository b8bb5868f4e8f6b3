"""The compiler of the native subset: what it takes means what Python means, what it does not take is refused."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_device.abi.errors import NpuDeviceError
from npu_device.event_loop.native import NativeModule

SOURCE = """
Ints = list[int]
LIMIT = 5

def helper(a: int) -> int:
    return -a if a < LIMIT else min(a, 9)

def mixed(m: Ints, a: int, b: int) -> int:
    total = 0
    i = 0
    while i < 4:
        if m[i] and (a > i or not b == 2):
            total += m[i] // 2 + (m[i] % 3 << 1)
        elif a & 1 | b >> 1:
            total -= helper(i)
        m[i] += a
        i += 1
    return total * max(a, b) + (a != b)
"""


def module(source: str, path: Path, name: str) -> types.ModuleType:
    file = path / f"{name}.py"
    file.write_text(source, encoding="utf-8")
    made = types.ModuleType(name)
    made.__file__ = str(file)
    exec(compile(source, str(file), "exec"), made.__dict__)
    sys.modules[name] = made
    return made


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[types.ModuleType, NativeModule]:
    made = module(SOURCE, tmp_path_factory.mktemp("native"), "native_subset_sample")
    return made, NativeModule(made)


small = st.integers(0, 20)


@given(st.lists(small, min_size=4, max_size=4), small, small)
def test_native_means_what_python_means(
    both: tuple[types.ModuleType, NativeModule], words: list[int], a: int, b: int
) -> None:
    python, native = both
    array = np.array(words, np.int64)
    assert native.function("mixed")(array, a, b) == python.mixed(words, a, b)
    assert array.tolist() == words


def test_what_is_known_need_not_be_there(tmp_path: Path) -> None:
    """An element with a known value is not read, and a function that is not asked for may vanish."""
    source = """
Ints = list[int]
import native_known_sample as w
ON = 1

def never(m: Ints) -> int:
    return m[0] // m[1]

def f(m: Ints) -> int:
    return m[2] if m[w.ON] else never(m)
"""
    made = types.ModuleType("native_known_sample")
    made.ON = 1  # type: ignore[attr-defined]
    sys.modules["native_known_sample"] = made
    sample = module(source, tmp_path, "native_known_sample")
    native = NativeModule(sample, only=["f"], known={"m[w.ON]": 1})
    assert native.function("f")(np.array([1, 0, 7], np.int64)) == 7


OUTSIDE = ("return [a]", "for i in range(a):\n        pass", "return unknown(a)", "return a ** 2", "return a.real")


@pytest.mark.parametrize("line", OUTSIDE)
def test_what_is_outside_the_subset_is_refused(line: str, tmp_path: Path) -> None:
    made = module(f"def f(a: int) -> int:\n    {line}\n", tmp_path, f"native_refused_{OUTSIDE.index(line)}")
    with pytest.raises(NpuDeviceError, match="outside the native subset"):
        NativeModule(made)


def test_a_changed_source_is_compiled_anew(tmp_path: Path) -> None:
    """Whatever code is kept from before: the text decides, and what the module's integers are."""
    source, found = "LIMIT = 5\n\ndef f(a: int) -> int:\n    return a + LIMIT\n", []
    for text, limit in ((source, 5), (source, 6), (source.replace("+", "-"), 6), (source, 5)):
        made = module(text, tmp_path, "native_changed")
        made.LIMIT = limit  # type: ignore[attr-defined]
        found.append(NativeModule(made).function("f")(10))
    assert found == [15, 16, 4, 15]
