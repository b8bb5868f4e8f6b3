"""Which layers can run at the same time, against the closure of what each waits for."""

from hypothesis import given
from hypothesis import strategies as st

from toolchain.passes.tiling import independent


@st.composite
def waits(draw: st.DrawFn) -> list[set[int]]:
    """For each layer the earlier ones that it waits for: near ones, so that some graphs are narrow in places."""
    count = draw(st.integers(0, 12))
    return [draw(st.sets(st.integers(max(0, at - 3), at - 1), max_size=3)) if at else set() for at in range(count)]


@given(waits(), st.data())
def test_independent_layers_are_those_of_a_phase_that_no_path_joins(
    before: list[set[int]], data: st.DataObject
) -> None:
    phases = data.draw(st.lists(st.integers(0, 1), min_size=len(before), max_size=len(before)).map(sorted))
    earlier = list[set[int]]()
    for names in before:
        earlier.append(names.union(*(earlier[one] for one in names)))
    everything = range(len(before))
    want = [
        [
            b for b in everything
            if a != b and a not in earlier[b] and b not in earlier[a] and phases[a] == phases[b]
        ]
        for a in everything
    ]  # fmt: skip
    assert [found.tolist() for found in independent(before, phases)] == want
