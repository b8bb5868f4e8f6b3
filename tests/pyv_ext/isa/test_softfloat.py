"""Arithmetic in integers against numpy's, rounded to nearest even, over operands at the edges of the formats."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyv_ext.isa import softfloat
from pyv_ext.isa.softfloat import DOUBLE, RNE, SINGLE, FloatFormat

TYPES = {SINGLE: (np.uint32, np.float32), DOUBLE: (np.uint64, np.float64)}
OPERATIONS = {
    softfloat.add: operator.add,
    softfloat.sub: operator.sub,
    softfloat.mul: operator.mul,
    softfloat.div: operator.truediv,
}


def bits_of(form: FloatFormat, value: object) -> int:
    word, number = TYPES[form]
    return form.nan if np.isnan(value) else int(np.array([value], number).view(word)[0])


def encodings(form: FloatFormat) -> st.SearchStrategy[int]:
    width = 1 + form.exponent + form.fraction
    numbers = st.floats(width=width).map(lambda value: bits_of(form, TYPES[form][1](value)))
    return numbers | st.integers(0, (1 << width) - 1)


@pytest.mark.parametrize("form", [SINGLE, DOUBLE], ids=["single", "double"])
@given(data=st.data())
def test_results_are_those_of_numpy(form: FloatFormat, data: st.DataObject) -> None:
    a, b = data.draw(encodings(form)), data.draw(encodings(form))
    word, number = TYPES[form]
    one, other = np.array([a, b], word).view(number)
    with np.errstate(all="ignore"):
        for ours, theirs in OPERATIONS.items():
            assert ours(form, a, b, RNE)[0] == bits_of(form, theirs(one, other)), ours.__name__
        assert softfloat.sqrt(form, a, RNE)[0] == bits_of(form, np.sqrt(one))
    assert softfloat.equal(form, a, b)[0] == (one == other)
    assert softfloat.less(form, a, b)[0] == (one < other)
    assert softfloat.less_equal(form, a, b)[0] == (one <= other)


@given(a=encodings(DOUBLE))
def test_a_double_becomes_the_single_of_numpy(a: int) -> None:
    with np.errstate(all="ignore"):
        value = np.array([a], np.uint64).view(np.float64)[0].astype(np.float32)
    assert softfloat.convert(DOUBLE, a, SINGLE, RNE)[0] == bits_of(SINGLE, value)
