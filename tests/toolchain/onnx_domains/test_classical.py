"""Operators of ai.onnx.ml, as scikit-learn's and boosted trees' exporters write them; onnxruntime is the reference."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_reference import LIMIT, by_onnxruntime, by_us, near, one_node, random

from toolchain.errors import ModelError
from toolchain.onnx_domains.classical import CLASSICAL
from toolchain.onnx_domains.trees import regressor
from toolchain.onnx_nodes.evaluation import TensorInfo
from toolchain.onnx_nodes.parts import Decomposition
from toolchain.onnx_nodes.view import NodeView

ML = "ai.onnx.ml"
I64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
X = np.array([[0.5, 1, 2], [-1, 0, 3], [2, 2, 2], [0, -3, 1], [1, 1, np.nan], [np.nan, np.nan, 0]], np.float32)


def model(operator: str, inputs: dict[str, Any], outputs: tuple[str, ...] = ("y",), *, kinds: Any = (),
          version: int = 3, **how: Any) -> Any:  # fmt: skip
    made = one_node(operator, inputs, outputs, kinds=kinds, domain=ML, **how)
    next(one for one in made.opset_import if one.domain == ML).version = version
    return made


def check(proto: Any, feeds: dict[str, Any]) -> None:
    got, _ = by_us(proto, feeds)
    for name, want in by_onnxruntime(proto, feeds).items():
        near(got[name], np.asarray(want), LIMIT, name)


def trees(random: Any, modes: Any, count: int = 3, depth: int = 3, width: int = 3) -> dict[str, Any]:
    """Attributes of full trees whose thresholds are values of X too; their leaves have the numbers 2^depth - 1 ..."""
    nodes = (1 << depth + 1) - 1
    inner = (1 << depth) - 1
    places = [(tree, node) for tree in range(count) for node in range(nodes)]
    mode = [str(random.choice(modes)) if node < inner else "LEAF" for _, node in places]
    return {
        "nodes_treeids": [tree for tree, _ in places],
        "nodes_nodeids": [node for _, node in places],
        "nodes_featureids": [int(random.integers(width)) if node < inner else 0 for _, node in places],
        "nodes_values": [float(random.integers(-2, 4)) if node < inner else 0.0 for _, node in places],
        "nodes_modes": mode,
        "nodes_truenodeids": [2 * node + 1 if node < inner else 0 for _, node in places],
        "nodes_falsenodeids": [2 * node + 2 if node < inner else 0 for _, node in places],
        "nodes_missing_value_tracks_true": [int(random.integers(2)) for _ in places],
    }


def leaves(random: Any, made: dict[str, Any], of: str, targets: int) -> dict[str, Any]:
    """Weights of all leaves for all targets."""
    pairs = [
        (tree, node)
        for tree, node, mode in zip(made["nodes_treeids"], made["nodes_nodeids"], made["nodes_modes"], strict=True)
        if mode == "LEAF"
    ]
    return {
        f"{of}_treeids": [tree for tree, _ in pairs for _ in range(targets)],
        f"{of}_nodeids": [node for _, node in pairs for _ in range(targets)],
        f"{of}_ids": [target for _ in pairs for target in range(targets)],
        f"{of}_weights": random.uniform(0.1, 1, len(pairs) * targets).astype(np.float32).tolist(),
    }


@pytest.mark.parametrize("modes", [*((one,) for one in MODES), MODES])
def test_every_comparison_of_a_tree_with_values_that_are_missing(modes: tuple[str, ...]) -> None:
    random = np.random.default_rng(5)
    made = trees(random, modes)
    given = {**made, **leaves(random, made, "target", 2)}
    check(model("TreeEnsembleRegressor", {"x": X}, n_targets=2, base_values=[0.5, -1.0], **given), {"x": X})


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_what_trees_say_together(how: str) -> None:
    random = np.random.default_rng(6)
    made = trees(random, MODES[:1])
    given = {**made, **leaves(random, made, "target", 1)}
    check(model("TreeEnsembleRegressor", {"x": X}, n_targets=1, aggregate_function=how, **given), {"x": X})


def test_thresholds_lie_between_the_numbers_of_fp32() -> None:
    at = np.float32(0.3)
    x = np.array([[np.nextafter(at, np.float32(-1))], [at], [np.nextafter(at, np.float32(1))]], np.float32)
    for mode in MODES[:4]:
        given = {
            "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
            "nodes_values": [float(at), 0.0, 0.0], "nodes_modes": [mode, "LEAF", "LEAF"],
            "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
            "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
        }  # fmt: skip
        check(model("TreeEnsembleRegressor", {"x": x}, n_targets=1, **given), {"x": x})


def test_numbers_in_double_precision_that_are_thresholds() -> None:
    x = np.array([[1.2], [3.14], [0.3], [4.2]])
    given = {
        "nodes_featureids": [0, 0, 0], "nodes_modes": tensor(np.array([0, 1, 0], np.uint8)),
        "nodes_splits": tensor(np.array([3.14, 1.2, 4.2])), "nodes_trueleafs": [0, 1, 1],
        "nodes_truenodeids": [1, 0, 1], "nodes_falseleafs": [0, 1, 1], "nodes_falsenodeids": [2, 2, 3],
        "leaf_targetids": [0, 0, 0, 0], "leaf_weights": tensor(np.array([1.0, 2.0, 3.0, 4.0])), "tree_roots": [0],
        "n_targets": 1,
    }  # fmt: skip
    check(model("TreeEnsemble", {"x": x}, kinds=[TensorProto.DOUBLE], version=5, **given), {"x": x})


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("labels", [[0, 1, 2], [7, -2, 40]])
def test_classes_of_a_forest(transform: str, labels: list[int]) -> None:
    random = np.random.default_rng(7)
    made = trees(random, MODES[:1], depth=2)
    given = {**made, **leaves(random, made, "class", 3)}
    proto = model("TreeEnsembleClassifier", {"x": X}, ("label", "scores"), kinds=(I64, FLOAT),
                  classlabels_int64s=labels, post_transform=transform, **given)  # fmt: skip
    check(proto, {"x": X})


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize(("scored", "base"), [((0,), []), ((0,), [0.25]), ((1,), [0.25]), ((0, 1), [0.25])])
def test_two_classes(transform: str, negative: bool, scored: tuple[int, ...], base: list[float]) -> None:
    random = np.random.default_rng(8)
    made = trees(random, MODES[1:2], count=1, depth=2)
    weights = leaves(random, made, "class", len(scored))
    if negative:
        weights["class_weights"][::3] = [-one for one in weights["class_weights"][::3]]
    weights["class_ids"] = [scored[one] for one in weights["class_ids"]]
    given = {**made, **weights, **({"base_values": base} if base else {})}
    proto = model("TreeEnsembleClassifier", {"x": X}, ("label", "scores"), kinds=(I64, FLOAT),
                  classlabels_int64s=[3, 5], post_transform=transform, **given)  # fmt: skip
    if len(scored) == 1:
        check(proto, {"x": X})
        return
    got, want = by_us(proto, {"x": X})[0], by_onnxruntime(proto, {"x": X})
    near(got["scores"], want["scores"], LIMIT, "scores")
    assert np.array_equal(got["label"], np.array([3, 5])[got["scores"].argmax(1)])


def test_labels_of_text_are_their_places_and_zip_map_leaves_the_tensor() -> None:
    random = np.random.default_rng(9)
    made = trees(random, MODES[:1], depth=2)
    attributes = {**made, **leaves(random, made, "class", 3)}
    labels = ["pear", "fig", "plum"]
    nodes = [
        helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_strings=labels,
                         **attributes),
        helper.make_node("ZipMap", ["scores"], ["map"], domain=ML, classlabels_strings=labels),
    ]  # fmt: skip
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, []))
    )
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [None, 3])],
        [helper.make_tensor_value_info("label", TensorProto.STRING, [None]), helper.make_value_info("map", kind)],
    )  # fmt: skip
    sets = [helper.make_opsetid(ML, 3)]  # as exporters write it that need nothing else
    proto = helper.make_model(graph, opset_imports=sets, ir_version=8)
    want = by_onnxruntime(proto, {"x": X})
    got, _ = by_us(proto, {"x": X}, shapes={"x": X.shape})
    assert [labels[place] for place in got["label"]] == list(want["label"])
    for row, said in zip(got["map"], want["map"], strict=True):
        near(row, np.array([said[name] for name in labels], np.float32), LIMIT, "map")


def ensemble(mode: int, random: Any, **more: Any) -> dict[str, Any]:
    """Attributes of two trees of two nodes each, as ai.onnx.ml 5 has them."""
    splits = np.array([1, 0, 2, 1], np.float32)
    return {
        "tree_roots": [0, 2], "nodes_featureids": [0, 1, 2, 0], "nodes_modes": tensor(np.array([mode] * 4, np.uint8)),
        "nodes_splits": tensor(splits), "nodes_truenodeids": [1, 0, 3, 3], "nodes_trueleafs": [0, 1, 0, 1],
        "nodes_falsenodeids": [2, 1, 5, 4], "nodes_falseleafs": [1, 1, 1, 1], "n_targets": 2,
        "leaf_targetids": [0, 1, 0, 1, 0, 1], "leaf_weights": tensor(random.standard_normal(6).astype(np.float32)),
        **more,
    }  # fmt: skip


def tensor(values: Any) -> Any:
    return numpy_helper.from_array(values, "t")


@pytest.mark.parametrize("mode", range(6))
def test_an_ensemble_of_newer_operator_sets(mode: int) -> None:
    given = ensemble(mode, np.random.default_rng(10), aggregate_function=1)
    check(model("TreeEnsemble", {"x": X}, version=5, **given), {"x": X})


def test_an_ensemble_that_asks_for_members_of_sets() -> None:
    sets = np.array([0.5, 2, np.nan, 1, np.nan, 3, 1, 2, np.nan, 0, np.nan], np.float32)
    given = ensemble(6, np.random.default_rng(11), membership_values=tensor(sets))
    check(model("TreeEnsemble", {"x": X}, version=5, **given), {"x": X})


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize(("rows", "labels"), [(3, [0, 1, 2]), (3, [5, 9, 1]), (1, [0, 1])])
def test_a_linear_classifier(rows: int, labels: list[int], transform: str) -> None:
    x = random(24, 4)
    given = {"coefficients": random(rows * 4, seed=1).tolist(), "intercepts": random(rows, seed=2).tolist()}
    proto = model("LinearClassifier", {"x": x}, ("label", "scores"), kinds=(I64, FLOAT), version=1,
                  classlabels_ints=labels, post_transform=transform, **given)  # fmt: skip
    check(proto, {"x": x})


def test_a_linear_regressor() -> None:
    x = random(5, 4)
    given = {"coefficients": random(8, seed=1).tolist(), "intercepts": random(2, seed=2).tolist()}
    check(model("LinearRegressor", {"x": x}, version=1, targets=2, **given), {"x": x})


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID", "no vectors"])
def test_support_vectors(kernel: str, one_class: int) -> None:
    x, count = random(9, 4), 4 if kernel == "no vectors" else 6
    given: dict[str, Any] = {
        "coefficients": random(count, seed=1).tolist(), "kernel_params": [0.4, 0.5, 3.0], "kernel_type": "LINEAR",
        "rho": [0.25],
    }  # fmt: skip
    if kernel != "no vectors":
        vectors = random(count * 4, seed=2).tolist()
        given |= {"kernel_type": kernel, "n_supports": count, "support_vectors": vectors}
    check(model("SVMRegressor", {"x": x}, version=1, one_class=one_class, **given), {"x": x})


@pytest.mark.parametrize("probable", [False, True])
@pytest.mark.parametrize(
    ("kernel", "each", "labels"),
    [
        ("LINEAR", [2, 3], [0, 1]),
        ("RBF", [3, 1], [7, -2]),
        ("POLY", [2, 1, 4], [0, 1, 2]),
        ("SIGMOID", [1, 2, 2, 3], [5, 3, 9, 1]),
    ],
)
def test_classes_by_support_vectors(kernel: str, each: list[int], labels: list[int], probable: bool) -> None:
    """Coefficients of each vector are those against the other classes, as libsvm has them."""
    x, count, pairs = random(40, 4), sum(each), len(each) * (len(each) - 1) // 2
    given: dict[str, Any] = {
        "coefficients": random((len(each) - 1) * count, seed=1).tolist(), "kernel_params": [0.4, 0.5, 3.0],
        "kernel_type": kernel, "rho": (random(pairs, seed=4) / 50).tolist(), "vectors_per_class": each,
        "support_vectors": random(count * 4, seed=2).tolist(), "classlabels_ints": labels,
    }  # fmt: skip
    if probable:
        given |= {"prob_a": (-2 - random(pairs, seed=5)).tolist(), "prob_b": random(pairs, seed=6).tolist()}
    proto = model("SVMClassifier", {"x": x}, ("label", "scores"), kinds=(I64, FLOAT), version=1, **given)
    assert len(np.unique(by_onnxruntime(proto, {"x": x})["label"])) > 1
    check(proto, {"x": x})


@pytest.mark.parametrize(("classes", "positive"), [(1, False), (2, False), (2, True), (4, False)])
def test_classes_without_support_vectors(classes: int, positive: bool) -> None:
    """onnxruntime alone is the reference: that of ONNX compares 0 with the scores of several classes."""
    x, coefficients = random(60, 4), random(classes * 4, seed=1)
    given: dict[str, Any] = {
        "coefficients": (abs(coefficients) if positive else coefficients).tolist(), "kernel_params": [0.0, 0.0, 0.0],
        "rho": [0.125], "classlabels_ints": list(range(10, 10 + classes)),
    }  # fmt: skip
    proto = model("SVMClassifier", {"x": x}, ("label", "scores"), kinds=(I64, FLOAT), version=1, **given)
    assert len(np.unique(by_onnxruntime(proto, {"x": x})["label"])) == classes
    check(proto, {"x": x})


SEEN = np.array([[1, 5, 9], [5, 7, 1]], np.int64)


@pytest.mark.parametrize(
    ("operator", "inputs", "kind", "attributes"),
    [
        ("Scaler", {"x": random(4, 3)}, FLOAT, {"offset": [1.0, -2.0, 0.5], "scale": [2.0, 3.0, 0.25]}),
        ("Scaler", {"x": SEEN}, FLOAT, {"offset": [1.0], "scale": [2.0]}),
        *(("Normalizer", {"x": random(4, 3) * np.array([[1], [0], [2], [3]], np.float32)}, FLOAT, {"norm": norm})
          for norm in ("MAX", "L1", "L2")),
        ("Binarizer", {"x": random(4, 3)}, FLOAT, {"threshold": 0.25}),
        ("Imputer", {"x": X}, FLOAT, {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}),
        ("Imputer", {"x": X}, FLOAT, {"imputed_value_floats": [9.0], "replaced_value_float": 2.0}),
        ("LabelEncoder", {"x": SEEN}, I64, {"keys_int64s": [1, 5], "values_int64s": [40, -7], "default_int64": 3}),
        ("LabelEncoder", {"x": SEEN}, FLOAT, {"keys_int64s": [1, 9], "values_floats": [0.5, 2.5]}),
        ("OneHotEncoder", {"x": SEEN}, FLOAT, {"cats_int64s": [1, 5, 7]}),
        ("FeatureVectorizer", {"x": random(2, 3), "z": SEEN.astype(np.float32)}, FLOAT, {"inputdimensions": [3, 3]}),
    ],
)  # fmt: skip
def test_features(operator: str, inputs: Any, kind: int, attributes: Any) -> None:
    version = 2 if operator == "LabelEncoder" else 1
    check(model(operator, inputs, kinds=(kind,), version=version, **attributes), inputs)


@pytest.mark.parametrize("shape", [(6,), (4, 6)])
@pytest.mark.parametrize("constant", [True, False])
def test_columns_by_number(shape: tuple[int, ...], constant: bool) -> None:
    x, places = random(*shape), np.array([5, 0, 3], np.int64)
    inputs = {"x": x} if constant else {"x": x, "i": places}
    how: dict[str, Any] = {"constants": {"i": places}} if constant else {}
    check(model("ArrayFeatureExtractor", inputs, version=1, **how), inputs)


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        (
            "SVMRegressor",
            {"coefficients": [1.0]},
            "1 coefficients, 0 numbers of support vectors, 0 of rho for 3 columns",
        ),
        (
            "SVMRegressor",
            {"coefficients": [1.0], "rho": [0.0], "support_vectors": [1.0] * 3, "kernel_type": "MINE"},
            "kernel_type=MINE: supported are LINEAR, POLY, RBF, SIGMOID",
        ),
        (
            "SVMClassifier",
            {
                "coefficients": [1.0],
                "rho": [0.0],
                "support_vectors": [1.0] * 3,
                "classlabels_ints": [0, 1],
                "vectors_per_class": [1, 1],
            },
            r"sizes \[3, 1, 2, 1, 0, 0\] of support_vectors, .* must be \[6, 2, 2, 1, 0, 0\] for 3 columns",
        ),
        (
            "SVMClassifier",
            {"coefficients": [1.0] * 3, "rho": [0.0], "classlabels_ints": [0, 1]},
            "3 coefficients and 1 of rho without support vectors: must be 3 for each of 2 classes",
        ),
        (
            "SVMClassifier",
            {
                "coefficients": [1.0] * 3,
                "rho": [0.0],
                "classlabels_ints": [0],
                "support_vectors": [1.0] * 3,
                "vectors_per_class": [1],
            },
            "1 support vectors, 1 classes: supported are 1 or more",
        ),
        ("SVMRegressor", {"post_transform": "PROBIT"}, "post_transform=PROBIT: supported is NONE"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, "keys_strings: supported are numbers"),
        ("Normalizer", {"norm": "L3"}, "norm=L3: supported are MAX, L1, L2"),
        ("LinearRegressor", {"coefficients": [1.0]}, "1 coefficients: must be 1 x 3"),
        ("LinearRegressor", {"coefficients": [1.0] * 3, "post_transform": "PROBIT"}, "supported are NONE, SOFTMAX"),
        ("TreeEnsembleRegressor", {}, "lists of nodes of several lengths, or none"),
    ],
)
def test_what_is_not_supported_is_refused(operator: str, attributes: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        by_us(model(operator, {"x": X}, version=1, **attributes), {"x": X})
    assert "\n" not in str(caught.value)


def test_an_operator_without_a_row_is_refused() -> None:
    proto = model(
        "CategoryMapper", {"x": SEEN}, kinds=(TensorProto.STRING,), version=1, cats_int64s=[1], cats_strings=["a"]
    )
    with pytest.raises(ModelError, match=r"operator of ai\.onnx\.ml is not supported; `pyv-npu docs onnx-coverage`"):
        by_us(proto, {"x": SEEN})


def test_a_tree_that_does_not_end_is_refused() -> None:
    given = {
        "nodes_treeids": [0, 0], "nodes_nodeids": [0, 1], "nodes_featureids": [0, 0], "nodes_values": [1.0, 1.0],
        "nodes_modes": ["BRANCH_LEQ"] * 2, "nodes_truenodeids": [1, 0], "nodes_falsenodeids": [1, 0],
    }  # fmt: skip
    with pytest.raises(ModelError, match="branches lead back to themselves"):
        by_us(model("TreeEnsembleRegressor", {"x": X}, n_targets=1, **given), {"x": X})


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("nodes_featureids", 0, -1, "feature -1: the input has 3 columns"),
        ("nodes_featureids", 0, 3, "feature 3: the input has 3 columns"),
        ("nodes_truenodeids", 1, 99, "node 1 of tree 0 leads to one that is not there"),
        ("nodes_modes", 2, "BRANCH_MOST", "nodes_modes BRANCH_MOST: supported are BRANCH_LEQ"),
        ("target_nodeids", 1, 99, "a weight of node 99 of tree 0 for target 0: not there"),
        ("target_ids", 0, -1, "for target -1: not there"),
        ("target_ids", 0, None, "lists of weights of several lengths"),
    ],
)
def test_a_forest_that_is_broken_is_refused(name: str, index: int, value: Any, message: str) -> None:
    given = trees(np.random.default_rng(3), ["BRANCH_LT"])
    given |= {"target_treeids": [0] * 8, "target_nodeids": [*range(7, 15)], "target_ids": [0] * 8,
              "target_weights": [1.0] * 8}  # fmt: skip
    if value is None:
        del given[name][index]
    else:
        given[name][index] = value
    with pytest.raises(ModelError, match=message):
        by_us(model("TreeEnsembleRegressor", {"x": X}, n_targets=1, **given), {"x": X})


def test_nodes_of_a_large_forest_are_no_python_objects() -> None:
    """Bytes of a compilation for each node of a forest of 50,000: 8 lists of it hold 64 bytes of references alone."""
    given = trees(np.random.default_rng(3), ["BRANCH_LT"], count=800, depth=5)
    weights = {"target_treeids": [0], "target_nodeids": [31], "target_ids": [0], "target_weights": [1.0]}
    proto = model("TreeEnsembleRegressor", {"x": X[:1]}, n_targets=1, **given, **weights)
    node = NodeView(proto.graph.node[0], "m", 3, {"x": TensorInfo("FLOAT", (1, 3))}, {})
    tracemalloc.start()
    regressor(Decomposition(node))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / len(given["nodes_nodeids"]) < 300


def test_every_row_of_the_table_is_tested_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in CLASSICAL if f'"{name}"' not in source] == []
