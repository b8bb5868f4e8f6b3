"""Forests of decision trees as graphs of ONNX's operators.

All trees go one level down at a time, from a table of nodes in which a leaf leads to itself: Gather takes the feature
and the threshold of the node that each tree is at, Less chooses between its children. Every comparison becomes x < t:
x <= v is x < the number behind v, x > v its opposite, x == v two of them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import numpy_helper

from toolchain.onnx_nodes.parts import Decomposition
from toolchain.onnx_nodes.view import NodeView

TREES = (
    "base_values", "base_values_as_tensor", "nodes_falsenodeids", "nodes_featureids", "nodes_hitrates",
    "nodes_hitrates_as_tensor", "nodes_missing_value_tracks_true", "nodes_modes", "nodes_nodeids", "nodes_treeids",
    "nodes_truenodeids", "nodes_values", "nodes_values_as_tensor", "post_transform",
)  # fmt: skip
CLASSIFIER = (
    *TREES, "class_ids", "class_nodeids", "class_treeids", "class_weights", "class_weights_as_tensor",
    "classlabels_int64s", "classlabels_strings",
)  # fmt: skip
REGRESSOR = (
    *TREES, "aggregate_function", "n_targets", "target_ids", "target_nodeids", "target_treeids", "target_weights",
    "target_weights_as_tensor",
)  # fmt: skip
ENSEMBLE = (
    "aggregate_function", "leaf_targetids", "leaf_weights", "membership_values", "n_targets", "nodes_falseleafs",
    "nodes_falsenodeids", "nodes_featureids", "nodes_hitrates", "nodes_missing_value_tracks_true", "nodes_modes",
    "nodes_splits", "nodes_trueleafs", "nodes_truenodeids", "post_transform", "tree_roots",
)  # fmt: skip
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""Of nodes, as TreeEnsemble numbers them."""
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


class _Branch(NamedTuple):
    """A node as the model has it."""

    feature: int
    mode: str
    value: float
    true: int
    false: int
    missing: bool
    """Whether a value that is missing takes the true branch."""


def _least(value: float, *, above: bool = False) -> Any:
    """Returns the least number of FP32 that is not below a value, or above it."""
    single = np.float32(value)
    enough = single > value if above else single >= value
    return single if enough or np.isnan(single) else np.nextafter(single, np.float32(np.inf))


class Forest:
    """Tables of nodes: feature, threshold, and the nodes below and not below it."""

    def __init__(self, count: int, kind: Any) -> None:
        """`count`: nodes of the model; those that are added get numbers behind them. `kind`: the type of the features:
        those of DOUBLE are rounded to FP32, and so are the values that they are compared with."""
        self._rounded = np.dtype(kind) == np.float64
        self.feature = [0] * count
        self.threshold = [np.float32(0)] * count
        self.below = list(range(count))
        self.other = list(range(count))
        self.missing_below = [False] * count
        """Whether a value that is missing goes the way of those below."""

    def branch(self, at: int, node: _Branch) -> None:
        """Adds the node of number `at`."""
        mode, true, false, missing = node.mode, node.true, node.false, node.missing
        if mode in ("BRANCH_NEQ", "BRANCH_GT", "BRANCH_GTE"):  # the opposite, with its branches exchanged
            opposite = {"BRANCH_NEQ": "BRANCH_EQ", "BRANCH_GT": "BRANCH_LEQ", "BRANCH_GTE": "BRANCH_LT"}
            missing = not (missing or mode == "BRANCH_NEQ")
            mode, true, false = opposite[mode], false, true
        value = float(np.float32(node.value)) if self._rounded else node.value
        threshold, above = _least(value), _least(value, above=True)
        if mode == "BRANCH_EQ":
            second = len(self.feature)
            self._add()
            self._set(at, node.feature, threshold, false, second, missing=False)
            self._set(second, node.feature, above, true, false, missing=missing)
        else:
            self._set(at, node.feature, threshold if mode == "BRANCH_LT" else above, true, false, missing=missing)

    def member(self, at: int, feature: int, values: Sequence[float], true: int, false: int, missing: bool) -> None:
        """Adds the node of number `at`, which asks for one of several values: one after the other."""
        for value in values[:-1]:
            following = len(self.feature)
            self._add()
            self.branch(at, _Branch(feature, "BRANCH_EQ", value, true, following, missing))
            at = following
        self.branch(at, _Branch(feature, "BRANCH_EQ", values[-1] if values else math.nan, true, false, missing))

    def _add(self) -> None:
        for table, value in ((self.feature, 0), (self.below, 0), (self.other, 0)):
            table.append(value)
        self.threshold.append(np.float32(0))
        self.missing_below.append(False)

    def _set(self, at: int, feature: int, threshold: Any, below: int, other: int, *, missing: bool) -> None:
        self.feature[at], self.threshold[at] = feature, threshold
        self.below[at], self.other[at], self.missing_below[at] = below, other, missing

    def depth(self, roots: Sequence[int]) -> int | None:
        """Returns comparisons on the longest way from a root to a leaf; None: some way does not end."""
        level, steps = np.unique(roots), 0
        below, other = np.array(self.below), np.array(self.other)
        while True:
            inner = level[below[level] != level]
            if not inner.size:
                return steps
            if steps > len(below):
                return None
            level, steps = np.unique(np.concatenate([below[inner], other[inner]])), steps + 1


def rows(parts: Decomposition) -> tuple[str, int, int]:
    """Returns the first input in FP32 as rows: its name, rows and columns."""
    node, shape = parts.node, parts.node.shape(0)
    if len(shape) not in (1, 2):
        node.refuse(f"an input of {len(shape)} dimensions: supported are rows of features")
    count, width = (1, *shape)[-2:]
    x = parts.input(0) if parts.kind == np.float32 else parts.cast(parts.input(0), np.float32)
    return (x if len(shape) == 2 else parts.reshaped(x, count, width)), count, width


def _leaves(parts: Decomposition, forest: Forest, roots: Sequence[int]) -> str:
    """Returns the number of the leaf of each tree for each row."""
    node = parts.node
    depth = forest.depth(roots)
    if depth is None:
        node.refuse("a tree whose branches lead back to themselves: export the model again")
    x, count, width = rows(parts)
    if max(forest.feature) >= width:
        node.refuse(f"feature {max(forest.feature)}: the input has {width} columns: export the model again")
    feature = np.array(forest.feature, np.int64)
    if any(forest.missing_below):
        missing = parts.make("IsNaN", x)
        low = parts.make("Where", missing, parts.constant(np.array(-math.inf, np.float32)), x)
        x = parts.make("Concat", x, low, axis=1)
        feature += np.where(forest.missing_below, width, 0)
        width *= 2
    flat = parts.reshaped(x, count * width)
    tables = [parts.constant(np.array(table, np.int64)) for table in (feature, forest.below, forest.other)]
    threshold = parts.constant(np.array(forest.threshold, np.float32))
    offset = parts.constant((np.arange(count, dtype=np.int64) * width).reshape(-1, 1))
    nodes = parts.constant(np.tile(np.array(roots, np.int64), (count, 1)))
    for _ in range(depth):
        place = parts.make("Gather", tables[0], nodes)
        if count > 1:
            place = parts.make("Add", place, offset)
        less = parts.make("Less", parts.make("Gather", flat, place), parts.make("Gather", threshold, nodes))
        nodes = parts.make(
            "Where", less, parts.make("Gather", tables[1], nodes), parts.make("Gather", tables[2], nodes)
        )
    return nodes


def _numbers(node: NodeView, name: str) -> list[Any]:
    """Returns a list of numbers, which newer operator sets may have as a tensor."""
    tensor = node.attribute(f"{name}_as_tensor")
    values = node.attribute(name) if tensor is None else _array(tensor)
    return [] if values is None else list(values)


def _array(tensor: Any) -> Any:
    return numpy_helper.to_array(tensor).reshape(-1)


def _forest(parts: Decomposition, kind: str) -> tuple[Forest, list[int], dict[tuple[int, int], int]]:
    """Returns tables, roots, and the number of each node by tree and node, of an operator with lists of nodes."""
    node = parts.node
    names = ("treeids", "nodeids", "featureids", "modes", "truenodeids", "falsenodeids")
    trees, ids, features, _, true, false = (list(node.attribute(f"nodes_{name}", [])) for name in names)
    modes = node.texts("nodes_modes")
    values = _numbers(node, "nodes_values")
    missing = list(node.attribute("nodes_missing_value_tracks_true", [])) or [0] * len(ids)
    if not ids or len({*map(len, (trees, ids, features, modes, true, false, values, missing))}) > 1:
        node.refuse(f"lists of nodes of several lengths, or none: a {kind} has one entry of each for every node")
    number = {key: at for at, key in enumerate(zip(trees, ids, strict=True))}
    forest, children = Forest(len(ids), parts.kind), set[int]()
    for at, mode in enumerate(modes):
        if mode == "LEAF":
            continue
        if mode not in _MODES:
            node.refuse(f"nodes_modes {mode}: supported are {', '.join(_MODES)}, LEAF")
        yes, no = (number.get((trees[at], way[at]), -1) for way in (true, false))
        if -1 in (yes, no):
            node.refuse(f"node {ids[at]} of tree {trees[at]} leads to one that is not there: export the model again")
        children.update((yes, no))
        forest.branch(at, _Branch(features[at], mode, values[at], yes, no, bool(missing[at])))
    roots = [at for at in range(len(ids)) if at not in children]
    firsts = {tree: number for number, tree in reversed(list(enumerate(trees)))}
    return forest, roots if len(roots) == len(firsts) else sorted(firsts.values()), number


def _weights(node: NodeView, of: str, forest: Forest, number: dict[tuple[int, int], int], targets: int) -> Any:
    """Returns the weights of each node for each target."""
    table = np.zeros((len(forest.feature), targets), np.float32)
    keys = (node.attribute(f"{of}_{name}", []) for name in ("treeids", "nodeids", "ids"))
    for tree, leaf, target, weight in zip(*keys, _numbers(node, f"{of}_weights"), strict=True):
        if (tree, leaf) not in number or not 0 <= target < targets:
            node.refuse(
                f"a weight of node {leaf} of tree {tree} for target {target}: not there: export the model again"
            )
        table[number[tree, leaf], target] += np.float32(weight)
    return table


def _aggregate(parts: Decomposition, leaves: str, table: Any, trees: int, how: str) -> str:
    """Aggregates the trees' weights for each target."""
    if how not in _AGGREGATES:
        parts.node.refuse(f"attribute aggregate_function={how}: supported are {', '.join(_AGGREGATES)}")
    contributions = parts.make("Gather", parts.constant(table), leaves)
    operator = {"MIN": "ReduceMin", "MAX": "ReduceMax"}.get(how, "ReduceSum")
    result = parts.make(operator, contributions, parts.integers(1), keepdims=0)
    return parts.make("Div", result, parts.constant(np.array(trees, np.float32))) if how == "AVERAGE" else result


def transformed(parts: Decomposition, scores: str, how: str = "") -> str:
    """Scores behind the transform `how`, by default that of the attribute post_transform."""
    how = how or parts.node.attribute("post_transform", "NONE")
    if how == "NONE":
        return scores
    if how in ("SOFTMAX", "LOGISTIC"):
        return parts.make(*{"SOFTMAX": ("Softmax", scores), "LOGISTIC": ("Sigmoid", scores)}[how])
    return parts.node.refuse(f"attribute post_transform={how}: supported are NONE, SOFTMAX, LOGISTIC")


def _based(parts: Decomposition, scores: str, base: Sequence[float]) -> str:
    return parts.make("Add", scores, parts.constant(np.array(base, np.float32))) if np.any(base) else scores


def regressor(parts: Decomposition) -> None:
    node, targets = parts.node, int(parts.node.attribute("n_targets", 1))
    forest, roots, number = _forest(parts, "regressor")
    table = _weights(node, "target", forest, number, targets)
    how = node.attribute("aggregate_function", "SUM")
    scores = _aggregate(parts, _leaves(parts, forest, roots), table, len(roots), how)
    result = transformed(parts, _based(parts, scores, _numbers(node, "base_values")))
    parts.result("Identity", result)


def ensemble(parts: Decomposition) -> None:
    """Composes TreeEnsemble of ai.onnx.ml 5, which has leaves apart from nodes."""
    node = parts.node
    modes = [_MODES[int(one)] for one in _array(node.attribute("nodes_modes"))]
    splits, weights = (_array(node.attribute(name)) for name in ("nodes_splits", "leaf_weights"))
    features, true, false, true_leaf, false_leaf = (
        list(node.attribute(f"nodes_{name}"))
        for name in ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    )
    missing = list(node.attribute("nodes_missing_value_tracks_true", [])) or [0] * len(modes)
    inner, targets = len(modes), list(node.attribute("leaf_targetids"))
    if {*map(len, (splits, features, true, false, true_leaf, false_leaf, missing))} != {inner}:
        node.refuse("lists of nodes of several lengths: an ensemble has one entry of each for every node")
    for at, leaf in (*zip(true, true_leaf, strict=True), *zip(false, false_leaf, strict=True)):
        if not 0 <= at < (len(targets) if leaf else inner):
            node.refuse(
                f"a node leads to {'leaf' if leaf else 'node'} {at}, which is not there: export the model again"
            )
    forest, sets = Forest(inner + len(targets), parts.kind), _sets(node)
    for at, mode in enumerate(modes):
        yes = true[at] + (inner if true_leaf[at] else 0)
        no = false[at] + (inner if false_leaf[at] else 0)
        members = next(sets, []) if mode == "BRANCH_MEMBER" else []
        if mode == "BRANCH_MEMBER":
            forest.member(at, features[at], members, yes, no, bool(missing[at]))
        else:
            forest.branch(at, _Branch(features[at], mode, splits[at], yes, no, bool(missing[at])))
    roots = [int(one) for one in node.attribute("tree_roots")]
    table = np.zeros((len(forest.feature), int(node.attribute("n_targets"))), np.float32)
    table[inner + np.arange(len(targets)), targets] = weights
    how = _AGGREGATES[int(node.attribute("aggregate_function", 1))]
    scores = _aggregate(parts, _leaves(parts, forest, roots), table, len(roots), how)
    result = transformed(parts, scores, _TRANSFORMS[int(node.attribute("post_transform", 0))])
    if parts.kind == np.float32:
        parts.result("Identity", result)
    else:
        parts.result("CastLike", result, parts.input(0))


def _sets(node: NodeView) -> Iterator[list[float]]:
    """Yields the sets of BRANCH_MEMBER, in the order of its nodes; NaN ends each."""
    tensor, members = node.attribute("membership_values"), list[float]()
    for value in [] if tensor is None else _array(tensor):
        if math.isnan(value):
            yield members
            members = []
        else:
            members.append(float(value))
    if members:
        yield members


def labels_of(node: NodeView, name: str) -> list[int]:
    """Returns the labels of classes; text stands for its place among them, which is what the device has of it."""
    texts = node.attribute("classlabels_strings")
    return list(range(len(texts))) if texts else [int(one) for one in node.attribute(name, [])]


def labelled(parts: Decomposition, places: str, labels: Sequence[int]) -> None:
    """Composes the first output from the place of each row's class."""
    if list(labels) == list(range(len(labels))):
        parts.result("Identity", places)
    else:
        parts.result("Gather", parts.constant(np.array(labels, np.int64)), places, axis=0)


def classifier(parts: Decomposition) -> None:
    node = parts.node
    labels = labels_of(node, "classlabels_int64s")
    forest, roots, number = _forest(parts, "classifier")
    scored = sorted(set(node.attribute("class_ids", [])))
    table = _weights(node, "class", forest, number, max(len(labels), scored[-1] + 1 if scored else 1))
    scores = _aggregate(parts, _leaves(parts, forest, roots), table, len(roots), "SUM")
    base = _numbers(node, "base_values")
    if len(labels) == 2:
        _of_two_classes(parts, scores, labels, scored, positive=bool((table >= 0).all()))
        return
    result = _based(parts, scores, base)
    if node.gives(0):
        labelled(parts, parts.make("ArgMax", result, axis=1, keepdims=0), labels)
    if node.gives(1):
        parts.result("Identity", transformed(parts, result), index=1)


def _of_two_classes(
    parts: Decomposition, scores: str, labels: Sequence[int], scored: Sequence[int], *, positive: bool
) -> None:  # fmt: skip
    """Computes labels and scores of two classes like onnxruntime: exporters give the weights of the second class alone,
    as those of class 0. Without negative weights they are probabilities, else the first class has the opposite score.
    If both classes have weights, the larger score decides the label, by the operator's definition; onnxruntime's is 1
    or -1, whatever the labels are."""
    node, how = parts.node, parts.node.attribute("post_transform", "NONE")
    base = _numbers(node, "base_values")
    if len(base) > 1:
        node.refuse(f"{len(base)} base_values of two classes: onnxruntime and the operator's definition disagree on "
                    f"them: add them to the weights of one tree")  # fmt: skip
    one, last = len(scored) == 1, scored[-1]
    score = parts.sliced(scores, 1, last, last + 1)
    if last == 0:
        score = _based(parts, score, base)
    if node.gives(0) and not one:
        labelled(parts, parts.make("ArgMax", _based(parts, scores, [*base, 0] if base else []), axis=1, keepdims=0),
                 labels)  # fmt: skip
    elif node.gives(0):
        limit = parts.constant(np.array(0.5 if positive else 0, np.float32))
        place = parts.cast(parts.make("Greater", score, limit), np.int64)
        labelled(parts, parts.reshaped(place, -1), labels)
    if not node.gives(1):
        return
    if last:  # the first class has a score of its own, which is 0 without weights
        first = parts.sliced(scores, 1, 0, 1)
        both = parts.make("Concat", first if one else _based(parts, first, base), score, axis=1)
        parts.result("Identity", transformed(parts, both), index=1)
        return
    if how == "LOGISTIC":
        other, score = parts.make("Sigmoid", parts.make("Neg", score)), parts.make("Sigmoid", score)
    else:
        transformed(parts, score)  # refuses what it does not know
        other = _opposite(parts, score, positive=positive)
    parts.result("Concat", other, score, index=1, axis=1)


def _opposite(parts: Decomposition, score: str, *, positive: bool) -> str:
    """Returns the score of the other one of two classes."""
    return parts.make("Sub", parts.constant(np.array(1, np.float32)), score) if positive else parts.make("Neg", score)


def of_a_line(parts: Decomposition, score: str, labels: Sequence[int]) -> None:
    """Composes two classes, and the score of the second, of LinearClassifier."""
    node, zero = parts.node, parts.constant(np.array(0, np.float32))
    if node.gives(0):
        labelled(parts, parts.reshaped(parts.cast(parts.make("Greater", score, zero), np.int64), -1), labels)
    if node.gives(1):
        result = transformed(parts, score) if node.attribute("post_transform", "NONE") == "LOGISTIC" else score
        transformed(parts, score)
        parts.result("Concat", _opposite(parts, result, positive=True), result, index=1, axis=1)
