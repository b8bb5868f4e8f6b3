"""Decomposition of decision tree ensembles into ONNX operators.

All trees descend one level at a time through a table of nodes, in which a leaf is its own child: Gather reads feature
and threshold of the current nodes, Less selects the child. Every comparison is expressed as x < t: x <= v is x <
next(v) in FP32, x > v its opposite, and x == v takes two comparisons.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import numpy_helper

from toolchain.ir.graph import Values
from toolchain.onnx_nodes.parts import Decomposition, Tensor
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
"""Node modes, in the numbering of TreeEnsemble."""
_LEAF, _EQUAL, UNKNOWN = len(_MODES), _MODES.index("BRANCH_EQ"), -1
_CODES = {mode.encode(): code for code, mode in enumerate((*_MODES, "LEAF"))}
_OPPOSITES = [_MODES.index(mode) for mode in ("BRANCH_NEQ", "BRANCH_GT", "BRANCH_GTE")]
"""Modes expressed as a comparison with < and swapped children."""
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


class Branches(NamedTuple):
    """Inner nodes of the model, one array per property."""

    at: Values
    """Indices of the nodes."""
    feature: Values
    mode: Values
    """Indices into _MODES."""
    value: Values
    true: Values
    false: Values
    missing: Values
    """Whether a missing value (NaN) takes the true branch."""

    def with_members(self, sets: Iterator[list[float]], count: int) -> "tuple[Branches, int]":
        """Return (branches, number of nodes) with each BRANCH_MEMBER replaced by a chain of comparisons with the
        elements of its set. Additional nodes have indices from `count`."""
        members, rows = np.flatnonzero(self.mode == _MODES.index("BRANCH_MEMBER")), list[tuple[Any, ...]]()
        for at, feature, _, _, true, last, missing in zip(*(column[members] for column in self), strict=True):
            values = next(sets, []) or [math.nan]
            chain = [at, *range(count, count + len(values) - 1), last]
            count += len(values) - 1
            rows += [
                (node, feature, _EQUAL, value, true, following, missing)
                for node, value, following in zip(chain, values, chain[1:], strict=False)
            ]
        if not rows:
            return self, count
        columns = zip(self, zip(*rows, strict=True), strict=True)
        return Branches(*(np.append(np.delete(old, members), np.array(new, old.dtype)) for old, new in columns)), count


def _least(values: Values, *, above: bool = False) -> Values:
    """Return the smallest FP32 numbers not below `values`, or above them with `above`."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    enough = (single > values if above else single >= values) | np.isnan(single)
    return np.where(enough, single, np.nextafter(single, np.float32(np.inf)))


class Forest:
    """Node tables: feature, threshold, child below the threshold and other child. A leaf is its own child."""

    def __init__(self, count: int, branches: Branches, kind: Any) -> None:
        """`count`: nodes of the model; second comparisons of == are appended. `kind`: type of the features. DOUBLE
        features and their thresholds are rounded to FP32."""
        at, feature, mode, value, true, false, missing = branches
        opposite = np.isin(mode, _OPPOSITES)  # with swapped children
        missing = np.where(opposite, ~(missing | (mode == _MODES.index("BRANCH_NEQ"))), missing)
        true, false = np.where(opposite, false, true), np.where(opposite, true, false)
        if np.dtype(kind) == np.float64:
            value = value.astype(np.float32).astype(np.float64)
        threshold, above = _least(value), _least(value, above=True)
        equal = np.isin(mode, (_EQUAL, _MODES.index("BRANCH_NEQ")))
        strict = equal | np.isin(mode, (_MODES.index("BRANCH_LT"), _MODES.index("BRANCH_GTE")))
        second = count + np.arange(np.count_nonzero(equal))
        total = count + len(second)
        self.feature, self.threshold = np.zeros(total, np.int64), np.zeros(total, np.float32)
        self.below, self.other = np.arange(total), np.arange(total)
        self.missing_below = np.zeros(total, np.bool_)
        """Whether a missing value takes the child below the threshold."""
        self.feature[at], self.threshold[at] = feature, np.where(strict, threshold, above)
        self.below[at], self.other[at], self.missing_below[at] = true, false, missing & ~equal
        self.below[at[equal]], self.other[at[equal]] = false[equal], second
        self.feature[second], self.threshold[second] = feature[equal], above[equal]
        self.below[second], self.other[second], self.missing_below[second] = true[equal], false[equal], missing[equal]

    def depth(self, roots: Values) -> int | None:
        """Return the maximum number of comparisons from a root to a leaf; None for a cycle."""
        level, steps = np.unique(roots), 0
        while True:
            inner = level[self.below[level] != level]
            if not inner.size:
                return steps
            if steps > len(self.below):
                return None
            level, steps = np.unique(np.concatenate([self.below[inner], self.other[inner]])), steps + 1


class NodeTable:
    """Index of a node by tree id and node id; for duplicates, the last."""

    def __init__(self, trees: Values, ids: Values) -> None:
        self._trees, of_tree = np.unique(trees, return_inverse=True)
        self._ids, of_id = np.unique(ids, return_inverse=True)
        keys = of_tree * len(self._ids) + of_id
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def find(self, trees: Values, ids: Values) -> Values:
        """Return the indices of nodes; -1 for absent nodes."""
        tree, node = np.searchsorted(self._trees, trees), np.searchsorted(self._ids, ids)
        tree, node = np.minimum(tree, len(self._trees) - 1), np.minimum(node, len(self._ids) - 1)
        keys = tree * len(self._ids) + node
        place = np.searchsorted(self._keys, keys, side="right") - 1
        exists = (self._trees[tree] == trees) & (self._ids[node] == ids) & (self._keys[place] == keys)
        return np.where(exists, self._order[place], -1)


def rows(parts: Decomposition) -> tuple[Tensor, int, int]:
    """Return (name, rows, columns) of the first input as FP32 rows."""
    node, shape = parts.node, parts.node.shape(0)
    if len(shape) not in (1, 2):
        node.refuse(f"an input of {len(shape)} dimensions: supported are rows of features")
    count, width = (1, *shape)[-2:]
    x = parts.input(0).float32()
    return (x if len(shape) == 2 else x.reshape(count, width)), count, width


def _leaves(parts: Decomposition, forest: Forest, roots: Values) -> Tensor:
    """Return the index of the leaf of each tree for each row."""
    node = parts.node
    depth = forest.depth(roots)
    if depth is None:
        node.refuse("a tree whose branches lead back to themselves: export the model again")
    x, count, width = rows(parts)
    for feature in (forest.feature.min(), forest.feature.max()):
        if not 0 <= feature < width:
            node.refuse(f"feature {feature}: the input has {width} columns: export the model again")
    features = forest.feature
    if forest.missing_below.any():
        x = parts.make("Concat", x, parts.make("IsNaN", x).where(-math.inf, x), axis=1)
        features = features + np.where(forest.missing_below, width, 0)
        width *= 2
    flat = x.reshape(count * width)
    tables = [parts.constant(table) for table in (features, forest.below, forest.other)]
    threshold = parts.constant(forest.threshold)
    offset = parts.constant((np.arange(count, dtype=np.int64) * width).reshape(-1, 1))
    nodes = parts.constant(np.tile(roots, (count, 1)))
    for _ in range(depth):
        place = parts.make("Gather", tables[0], nodes)
        if count > 1:
            place = place + offset
        less = parts.make("Gather", flat, place) < parts.make("Gather", threshold, nodes)
        nodes = less.where(parts.make("Gather", tables[1], nodes), parts.make("Gather", tables[2], nodes))
    return nodes


def _numbers(node: NodeView, name: str) -> Values:
    """Return a numeric list attribute, which newer operator sets may store as a tensor."""
    tensor = node.attribute(f"{name}_as_tensor")
    return node.numbers(name) if tensor is None else _array(tensor)


def _array(tensor: Any) -> Values:
    return numpy_helper.to_array(tensor).reshape(-1)


def _missing(node: NodeView, count: int) -> Values:
    tracks = node.numbers("nodes_missing_value_tracks_true")
    return tracks != 0 if tracks.size else np.zeros(count, np.bool_)


def _forest(parts: Decomposition, kind: str) -> tuple[Forest, Values, NodeTable]:
    """Return (tables, roots, node indices) of an operator with lists of nodes."""
    node = parts.node
    names = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    trees, ids, features, true, false = (node.numbers(f"nodes_{name}") for name in names)
    modes, values = node.codes("nodes_modes", _CODES), _numbers(node, "nodes_values").astype(np.float64)
    missing = _missing(node, len(ids))
    if not len(ids) or len({*map(len, (trees, ids, features, modes, true, false, values, missing))}) > 1:
        node.refuse(f"lists of nodes of several lengths, or none: a {kind} has one entry of each for every node")
    if (modes == UNKNOWN).any():
        unknown = node.texts("nodes_modes")[int(np.argmax(modes == UNKNOWN))]
        node.refuse(f"nodes_modes {unknown}: supported are {', '.join(_MODES)}, LEAF")
    table, inner = NodeTable(trees, ids), np.flatnonzero(modes != _LEAF)
    targets = [table.find(trees[inner], branch[inner]) for branch in (true, false)]
    if (absent := (targets[0] < 0) | (targets[1] < 0)).any():
        at = inner[np.argmax(absent)]
        node.refuse(f"node {ids[at]} of tree {trees[at]} leads to one that is not there: export the model again")
    yes, no = targets
    branches = Branches(inner, features[inner], modes[inner], values[inner], yes, no, missing[inner])
    is_root = np.ones(len(ids), np.bool_)
    is_root[np.concatenate(targets)] = False
    roots, firsts = np.flatnonzero(is_root), np.unique(trees, return_index=True)[1]
    return Forest(len(ids), branches, parts.kind), roots if len(roots) == len(firsts) else np.sort(firsts), table


def _weights(node: NodeView, of: str, forest: Forest, table: NodeTable, targets: int) -> Values:
    """Return the weights of each node for each target."""
    trees, leaves, ids = (node.numbers(f"{of}_{name}") for name in ("treeids", "nodeids", "ids"))
    values, result = _numbers(node, f"{of}_weights"), np.zeros((len(forest.feature), targets), np.float32)
    if len({*map(len, (trees, leaves, ids, values))}) > 1:
        node.refuse("lists of weights of several lengths: there is one entry of each for every weight")
    numbers = table.find(trees, leaves)
    if (absent := (numbers < 0) | (ids < 0) | (ids >= targets)).any():
        at = int(np.argmax(absent))
        node.refuse(
            f"a weight of node {leaves[at]} of tree {trees[at]} for target {ids[at]}: not there: export the model again"
        )
    np.add.at(result, (numbers, ids), values.astype(np.float32))
    return result


def _aggregate(parts: Decomposition, leaves: Tensor, table: Any, trees: int, aggregate: str) -> Tensor:
    """Aggregate the trees' weights for each target."""
    if aggregate not in _AGGREGATES:
        parts.node.refuse(f"attribute aggregate_function={aggregate}: supported are {', '.join(_AGGREGATES)}")
    operator = {"MIN": "ReduceMin", "MAX": "ReduceMax"}.get(aggregate, "ReduceSum")
    result = parts.make(operator, parts.make("Gather", table, leaves), [1], keepdims=0)
    return result / trees if aggregate == "AVERAGE" else result


def transform_scores(parts: Decomposition, scores: Tensor, transform: str = "") -> Tensor:
    """Return the scores after `transform`, by default attribute post_transform."""
    transform = transform or parts.node.attribute("post_transform", "NONE")
    if transform == "NONE":
        return scores
    if transform not in ("SOFTMAX", "LOGISTIC"):
        parts.node.refuse(f"attribute post_transform={transform}: supported are NONE, SOFTMAX, LOGISTIC")
    return parts.make("Softmax" if transform == "SOFTMAX" else "Sigmoid", scores)


def _based(scores: Tensor, base: Values) -> Tensor:
    return scores + base.astype(np.float32) if np.any(base) else scores


def regressor(parts: Decomposition) -> None:
    node, targets = parts.node, int(parts.node.attribute("n_targets", 1))
    forest, roots, nodes = _forest(parts, "regressor")
    table = _weights(node, "target", forest, nodes, targets)
    aggregate = node.attribute("aggregate_function", "SUM")
    scores = _aggregate(parts, _leaves(parts, forest, roots), table, len(roots), aggregate)
    parts.result("Identity", transform_scores(parts, _based(scores, _numbers(node, "base_values"))))


def ensemble(parts: Decomposition) -> None:
    """Compose TreeEnsemble of ai.onnx.ml 5, which stores leaves separately from nodes."""
    node = parts.node
    modes, splits, weights = (_array(node.attribute(name)) for name in ("nodes_modes", "nodes_splits", "leaf_weights"))
    features, true, false, true_leaf, false_leaf = (
        node.numbers(f"nodes_{name}")
        for name in ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    )
    inner, targets, missing = len(modes), node.numbers("leaf_targetids"), _missing(node, len(modes))
    if {*map(len, (splits, features, true, false, true_leaf, false_leaf, missing))} != {inner}:
        node.refuse("lists of nodes of several lengths: an ensemble has one entry of each for every node")
    for branch, leaf in ((true, true_leaf), (false, false_leaf)):
        absent = (branch < 0) | (branch >= np.where(leaf, len(targets), inner))
        if absent.any():
            at = int(np.argmax(absent))
            kind = "leaf" if leaf[at] else "node"
            node.refuse(f"a node leads to {kind} {branch[at]}, which is not there: export the model again")
    yes, no = (child + np.where(leaf, inner, 0) for child, leaf in ((true, true_leaf), (false, false_leaf)))
    branches = Branches(np.arange(inner), features, modes.astype(np.int8), splits.astype(np.float64), yes, no, missing)
    branches, count = branches.with_members(_sets(node), inner + len(targets))
    forest, roots = Forest(count, branches, parts.kind), node.numbers("tree_roots")
    table = np.zeros((len(forest.feature), int(node.attribute("n_targets"))), np.float32)
    table[inner + np.arange(len(targets)), targets] = weights
    aggregate = _AGGREGATES[int(node.attribute("aggregate_function", 1))]
    scores = _aggregate(parts, _leaves(parts, forest, roots), table, len(roots), aggregate)
    result = transform_scores(parts, scores, _TRANSFORMS[int(node.attribute("post_transform", 0))])
    if parts.kind == np.float32:
        parts.result("Identity", result)
    else:
        parts.result("CastLike", result, parts.input(0))


def _sets(node: NodeView) -> Iterator[list[float]]:
    """Yield the sets of BRANCH_MEMBER in node order; NaN terminates each."""
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
    """Return the class labels; string labels become their indices, since the device has no strings."""
    texts = node.attribute("classlabels_strings")
    return list(range(len(texts))) if texts else [int(label) for label in node.attribute(name, [])]


def compose_labels(parts: Decomposition, places: Tensor, labels: Sequence[int]) -> None:
    """Compose the first output from the class index of each row."""
    if list(labels) == list(range(len(labels))):
        parts.result("Identity", places)
    else:
        parts.result("Gather", np.array(labels, np.int64), places, axis=0)


def classifier(parts: Decomposition) -> None:
    node = parts.node
    labels = labels_of(node, "classlabels_int64s")
    forest, roots, nodes = _forest(parts, "classifier")
    scored = np.unique(node.numbers("class_ids")).tolist()
    table = _weights(node, "class", forest, nodes, max(len(labels), scored[-1] + 1 if scored else 1))
    scores = _aggregate(parts, _leaves(parts, forest, roots), table, len(roots), "SUM")
    base = _numbers(node, "base_values")
    if len(labels) == 2:
        _of_two_classes(parts, scores, labels, scored, positive=bool((table >= 0).all()))
        return
    result = _based(scores, base)
    if node.gives(0):
        compose_labels(parts, parts.make("ArgMax", result, axis=1, keepdims=0), labels)
    if node.gives(1):
        parts.result("Identity", transform_scores(parts, result), index=1)


def _of_two_classes(
    parts: Decomposition, scores: Tensor, labels: Sequence[int], scored: Sequence[int], *, positive: bool
) -> None:  # fmt: skip
    """Compute labels and scores of two classes like onnxruntime. Exporters store only the second class's weights, as
    class 0. Without negative weights they are probabilities, otherwise the first class has the negated score. If both
    classes have weights, the larger score decides, as the operator is defined; onnxruntime returns 1 or -1 for any
    labels."""
    node, transform = parts.node, parts.node.attribute("post_transform", "NONE")
    base = _numbers(node, "base_values")
    if len(base) > 1:
        node.refuse(f"{len(base)} base_values of two classes: onnxruntime and the operator's definition disagree on "
                    f"them: add them to the weights of one tree")  # fmt: skip
    single_score, last = len(scored) == 1, scored[-1]
    score = scores.slice(1, last, last + 1)
    if last == 0:
        score = _based(score, base)
    if node.gives(0) and not single_score:
        based = _based(scores, np.append(base, 0)) if len(base) else scores
        compose_labels(parts, parts.make("ArgMax", based, axis=1, keepdims=0), labels)
    elif node.gives(0):
        compose_labels(parts, (score > (0.5 if positive else 0)).cast(np.int64).reshape(-1), labels)
    if not node.gives(1):
        return
    if last:  # the first class has its own score, 0 without weights
        first = scores.slice(1, 0, 1)
        class_scores = parts.make("Concat", first if single_score else _based(first, base), score, axis=1)
        parts.result("Identity", transform_scores(parts, class_scores), index=1)
        return
    if transform == "LOGISTIC":
        other, score = parts.make("Sigmoid", -score), parts.make("Sigmoid", score)
    else:
        transform_scores(parts, score)  # refuses an unknown transform
        other = 1 - score if positive else -score
    parts.result("Concat", other, score, index=1, axis=1)


def compose_binary_linear(parts: Decomposition, score: Tensor, labels: Sequence[int]) -> None:
    """Compose labels and scores of a LinearClassifier with two classes and one row of coefficients."""
    node = parts.node
    if node.gives(0):
        compose_labels(parts, (score > 0).cast(np.int64).reshape(-1), labels)
    if node.gives(1):
        result = transform_scores(parts, score) if node.attribute("post_transform", "NONE") == "LOGISTIC" else score
        transform_scores(parts, score)
        parts.result("Concat", 1 - result, result, index=1, axis=1)
