"""The text of results."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyv_npu.text import as_json
from pyv_state.enumerations import IntEnum


class Few(IntEnum):
    ONE = 1


SIMPLE = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just(Few.ONE))
KEYS = st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none())
VALUES = st.recursive(
    SIMPLE, lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(KEYS, inner))
)


@given(st.dictionaries(KEYS, VALUES))
def test_json_is_that_of_the_standard_library(value: dict[str, object]) -> None:
    assert as_json(value) == json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def test_every_character_is_escaped_as_the_standard_library_does() -> None:
    value = {"text": "".join(map(chr, range(0x2100)))}
    assert as_json(value) == json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def test_what_has_no_form_in_json_is_refused() -> None:
    with pytest.raises(TypeError, match=r"set has no form in JSON: give what json\.dumps takes"):
        as_json({"a": {1}})
