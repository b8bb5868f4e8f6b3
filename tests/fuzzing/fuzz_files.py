"""Mutated files beside a model or a server: arrays and pictures for inputs, requests of traces, records of a report."""

import io
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fuzz_inputs import INTERESTING, flipped, refused
from PIL import Image

from pyv_npu.cli.shared import replay
from pyv_npu.observe.latency.arrivals import recorded
from pyv_npu.serving.traces import read_workload
from pyv_npu.studies.diff_page import cumulative
from pyv_npu.studies.perplexity import read_tokens
from pyv_npu.workloads.data import read_input, read_inputs

TRACES = (
    "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,20\n1,30,40\n",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,10,20\n2023-11-16 18:15:50,30,40\n",
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,x,10,20,30,y\n6,x,1,0,1,y\n",
    '{"timestamp": 5, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}\n',
    '{"input_toks": 4, "output_toks": 5, "arrival_time_ns": 6}\n{"session_id": "a", "sub_requests": [{"input_toks": 1, '
    '"output_toks": 2, "tool_duration_ns": 3}, {"input_toks": 4, "output_toks": 5}]}\n',
)
NUMBERS: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("5\n6\n6\n700\n", lambda path: recorded(str(path), 3)), ("[3, 1, 4, 1, 5]\n", read_tokens),
    ("mode,stage,cycles,submissions_at_most\ntight,bus,5,1\ntight,bus,6,3\n", cumulative),
)  # fmt: skip
"""Files of numbers beside a run, and their readers."""
WORDS = (
    "", "-1", "1e9", "1e999999", "nan", "0x10", "[", "{}", '"', "null", "9" * 400, "9" * 5000, "2023-99-99",
    *map(str, INTERESTING),
)  # fmt: skip
RECORD = {
    "record": {
        "command_line": ["pyv-npu", "run", "hello"], "directory": "..", "versions": {"numpy": "1"},
        "inputs_sha256": {"hello": "5" * 64}, "events_sha256": {"run": "6" * 64}, "files": ["report.html"],
    }
}  # fmt: skip


@cache
def arrays() -> dict[str, bytes]:
    """A file of each kind that inputs of a model come from, by suffix."""
    values, made = np.zeros((2, 3), np.float32), {}
    pixels = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
    for suffix, save in (
        (".npy", lambda file: np.save(file, values)), (".npz", lambda file: np.savez(file, x=values)),
        (".packed.npz", lambda file: np.savez_compressed(file, x=values)),
        (".png", lambda file: pixels.save(file, "PNG")), (".jpg", lambda file: pixels.save(file, "JPEG")),
    ):  # fmt: skip
        file = io.BytesIO()
        save(file)
        made[suffix] = file.getvalue()
    return made


def input_files(chance: random.Random, folder: Path) -> bool:
    """Bytes of arrays and pictures are changed, or the file ends early."""
    suffix, data = chance.choice(tuple(arrays().items()))
    data = flipped(data, chance) if chance.random() < 0.9 else data[: chance.randrange(len(data))]
    path = folder / f"fuzzed{suffix}"
    path.write_bytes(data)
    try:
        if suffix.endswith(".npz"):
            read_inputs(path)
        else:
            read_input(path, np.zeros((1, 3, 4, 4), np.float32))
    except Exception as error:
        return not refused(error)
    return True


def traces(chance: random.Random, folder: Path) -> bool:
    """Words and bytes of the five forms of workloads, and of files of numbers, are changed."""
    text, reader = chance.choice((*((text, read_workload) for text in TRACES), *NUMBERS))
    for _ in range(chance.randint(1, 3)):
        words = text.replace(":", ",").replace("\n", ",").split(",")
        text = text.replace(chance.choice(words) or "1", chance.choice(WORDS), 1)
    data = text.encode()
    path = folder / "fuzzed.trace"
    path.write_bytes(flipped(data, chance) if data and chance.random() < 0.3 else data)
    try:
        reader(path)
    except Exception as error:
        return not refused(error)
    return True


def records(chance: random.Random, folder: Path) -> bool:
    """Values and bytes of the record of a report are changed; what it reads is looked for."""
    document: dict[str, Any] = {"record": dict(RECORD["record"])}
    for _ in range(chance.randint(1, 2)):
        name = chance.choice(tuple(document["record"]))
        document["record"][name] = chance.choice(
            ([], {}, 5, None, "x", [5], {"a": 5}, {5: "a"}, ["a\0"], {"a\0": "b"}, [[]])
        )
    text = yaml.safe_dump(document)
    data = flipped(text.encode(), chance) if chance.random() < 0.4 else text.encode()
    path = folder / "run.yaml"
    path.write_bytes(data)
    try:
        replay.read(path).find_inputs()
    except Exception as error:
        return not refused(error)
    return True
