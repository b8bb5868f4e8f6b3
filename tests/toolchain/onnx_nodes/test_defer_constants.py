"""Nodes in other orders compute the same."""

import random

from onnx import NodeProto, helper

from toolchain.onnx_nodes.order import defer_constants


def _nodes(seed: int) -> list[NodeProto]:
    """Some read constants only, some the input x too, some have two outputs, one of them without a name."""
    chance = random.Random(seed)
    names, nodes = ["x", "w"], []
    for index in range(chance.randint(1, 30)):
        outputs = [f"n{index}", chance.choice(["", f"m{index}"])]
        read = chance.sample(names, chance.randint(0, min(3, len(names))))
        nodes.append(helper.make_node("Op", read, outputs))
        names += filter(None, outputs)
    return nodes


def test_constants_stand_right_before_their_first_reader() -> None:
    for seed in range(200):
        nodes = _nodes(seed)
        ordered = defer_constants(nodes, {"w"})
        assert sorted(map(id, ordered)) == sorted(map(id, nodes))
        made, constant = {"x", "w"}, {"w"}
        for node in nodes:
            constant |= set(node.output) if constant >= set(node.input) else set()
        for at, node in enumerate(ordered):
            assert made >= set(node.input)
            made |= set(node.output)
            readers = [one for one in ordered[at + 1 :] if set(one.input) & {*filter(None, node.output)}]
            if constant >= set(node.input) and readers:
                until = ordered[at + 1 : ordered.index(readers[0])]
                assert all(constant >= set(one.input) for one in until), "only constants stand between"
        others = [node for node in nodes if not constant >= set(node.input)]
        assert [node for node in ordered if not constant >= set(node.input)] == others, "these stay in their order"
