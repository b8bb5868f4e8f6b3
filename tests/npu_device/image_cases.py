"""Shapes of images and windows for CONV2D_T and POOL."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]


shapes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2), "h": st.integers(1, 9), "w": st.integers(1, 9), "kh": st.integers(1, 3),
        "kw": st.integers(1, 3), "sh": st.integers(1, 3), "sw": st.integers(1, 3), "dh": st.integers(1, 2),
        "dw": st.integers(1, 2), "pt": st.integers(0, 2), "pl": st.integers(0, 2), "pb": st.integers(0, 2),
        "pr": st.integers(0, 2),
    }
)  # fmt: skip


def out_size(s: dict[str, int]) -> tuple[int, int]:
    p = (s["h"] + s["pt"] + s["pb"] - s["dh"] * (s["kh"] - 1) - 1) // s["sh"] + 1
    q = (s["w"] + s["pl"] + s["pr"] - s["dw"] * (s["kw"] - 1) - 1) // s["sw"] + 1
    return p, q


def attributes(s: dict[str, int]) -> dict[str, Any]:
    return {
        "kernel_shape": [s["kh"], s["kw"]], "strides": [s["sh"], s["sw"]], "dilations": [s["dh"], s["dw"]],
        "pads": [s["pt"], s["pl"], s["pb"], s["pr"]],
    }  # fmt: skip


def nchw(images: Array) -> Array:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
