"""Files of five projects are read as they are; a bad row is one line with file, line, value and rule."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.serving.requests import Request, Workload, fitted
from pyv_npu.serving.scheduler import SchedulerConfig, prefix_keys
from pyv_npu.serving.server import serve
from pyv_npu.serving.synthetic import Drawn, draw
from pyv_npu.serving.traces import read_workload

SERVINGSIM = (
    '{"input_toks": 3, "output_toks": 512, "arrival_time_ns": 7, "input_tok_ids": [1, 2, 3], "output_tok_ids": []}\n'
    '{"session_id": "task-0", "arrival_time_ns": 9, "sub_requests": ['
    '{"input_toks": 1472, "output_toks": 133, "tool_duration_ns": 127348767}, '
    '{"input_toks": 1582, "output_toks": 125, "tool_duration_ns": 0}]}\n'
)
FILES = {
    "llmservingsim": (
        "a.jsonl", SERVINGSIM,
        [Request(0, 7, 3, 512, tokens=(1, 2, 3)), Request(1, 9, 1472, 133, session="task-0"),
         Request(2, 9, 1582, 125, session="task-0", after=1, gap_ns=127348767)],
    ),
    "vidur": (
        "a.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,12,3\n1.5,2048,17\n",
        [Request(0, 0, 12, 3), Request(1, 1_500_000_000, 2048, 17)],
    ),
    "azure": (
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319600,3180,8\n",
        [Request(0, 0, 4808, 10), Request(1, 52_000_000, 3180, 8)],
    ),
    "burstgpt": (
        "a.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n118,GPT-4,417,276,693,Conversation log\n",
        [Request(0, 0, 472, 18), Request(1, 113_000_000_000, 417, 276)],
    ),
    "mooncake": (
        "a.jsonl",
        '{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n',
        [Request(0, 27_482_000_000, 600, 52, units=(46, 47), unit_tokens=512)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FILES)
def test_a_file_is_recognised_and_read(form: str, tmp_path: Path) -> None:
    name, text, wanted = FILES[form]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    made = read_workload(path)
    assert (made.form, list(made.requests), made.omitted) == (form, wanted, int(form == "burstgpt"))


FORMS = (
    "llmservingsim: input_toks; llmservingsim: sub_requests; mooncake: input_length; vidur: arrived_at,"
    "num_prefill_tokens,num_decode_tokens; azure: TIMESTAMP,ContextTokens,GeneratedTokens; burstgpt: Timestamp,Request "
    "tokens,Response tokens"
)
BAD = {
    '{"input_toks": 0, "output_toks": 5}\n': "FILE: line 1: input_toks 0: must be 1..16777216",
    '{"input_toks": 1, "output_toks": 5}\n{"input_toks": 2}\n': "FILE: line 2: no output_toks: every request has one",
    '{"input_toks": 1, "output_toks": true}\n': "FILE: line 1: output_toks True: must be a whole number",
    '{"input_toks": 1, "output_toks": 5, "arrival_time_ns": -1}\n':
        "FILE: line 1: arrival_time_ns -1: must be 0..4611686018427387904",
    '{"input_toks": 2, "output_toks": 5, "input_tok_ids": [1]}\n':
        "FILE: line 1: input_tok_ids '1 tokens': must be as many as input_toks, 2",
    '{"session_id": "a", "sub_requests": [{"input_toks": 2, "output_toks": "x"}]}\n':
        "FILE: line 1: sub_requests[0]: output_toks 'x': must be a whole number",
    '{"input_toks": 1, "output_toks": 5}\n[1]\n': "FILE: line 2: '[1]': must be a JSON object",
    '{"input_toks": 1e400, "output_toks": 5}\n': "FILE: line 1: input_toks inf: must be a whole number",
    '{"foo": 1}\n': f"FILE: line 1: '{{\"foo\": 1}}' is of no known form ({FORMS})",
    "": "FILE: is empty; a workload has a request on each line",
    "arrived_at,num_prefill_tokens,num_decode_tokens\n": "FILE: holds no request; give at least one",
    "arrived_at,num_prefill_tokens,num_decode_tokens\nnan,1,1\n":
        "FILE: line 2: arrived_at 'nan': must be a number of at least 0",
    "arrived_at,num_prefill_tokens,num_decode_tokens\n9e999999,1,1\n":
        "FILE: line 2: arrived_at '9e999999': must be a number of at least 0",
    "arrived_at,num_prefill_tokens,num_decode_tokens\n1,1e9999999,1\n":
        "FILE: line 2: num_prefill_tokens '1e9999999': must be a whole number",
    f"arrived_at,num_prefill_tokens,num_decode_tokens\n{'9' * 140_000},1,1\n":
        "FILE: line 2: field larger than field limit (131072): correct the line",
    "arrived_at,num_prefill_tokens,num_decode_tokens\n1,1\n": "FILE: line 2: 2 fields: the header names 3",
    "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n":
        "FILE: line 2: TIMESTAMP 'yesterday': must be a date like 2023-11-16 18:15:46.6805900",
    "a,b\n1,2\n": f"FILE: line 1: 'a,b' is of no known form ({FORMS})",
    '{"timestamp": 0, "input_length": 600, "output_length": 52, "hash_ids": [46]}\n':
        "FILE: line 1: hash_ids '1 names': must name each 512 of 600 tokens",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_a_bad_row_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError) as caught:
        read_workload(path)
    assert str(caught.value).replace(str(path), "FILE") == BAD[text]


def test_a_misspelled_kind_of_arrivals_is_no_file() -> None:
    expected = (
        r"^--workload poison:5: no such file: name a file, or arrivals: poisson:RATE, gamma:RATE,cv=CV, "
        r"burst, closed:CLIENTS; did you mean poisson\?$"
    )
    with pytest.raises(BadInputError, match=expected):
        read_workload(Path("poison:5"))


def test_drawn_requests_have_the_rate_and_the_spread_that_were_asked_for() -> None:
    for arrivals, cv in (("poisson:4", 1.0), ("gamma:4,cv=2", 2.0), ("gamma:4,cv=0.5", 0.5)):
        made = draw(Drawn(arrivals, 20_000, "uniform:10,20", "lognormal:100,0.5", 1, 4096)).requests
        gaps = [later.arrival_ns - sooner.arrival_ns for sooner, later in pairwise(made)]
        mean = sum(gaps) / len(gaps)
        spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
        assert abs(mean / 0.25e9 - 1) < 0.04
        assert abs(spread / mean / cv - 1) < 0.06
        assert {one.input_toks for one in made} == set(range(10, 21))
        assert abs(sorted(one.output_toks for one in made)[10_000] - 100) <= 2
    assert draw(Drawn("burst", 9, "5", "6", 0, 99)).requests[8] == Request(8, 0, 5, 6)


WRONG = {
    **{(arrivals, "1"): f"--workload {arrivals}: must be one of poisson:RATE, gamma:RATE,cv=CV, burst, closed:CLIENTS, "
                        "with numbers above 0 and below 10^9, and fewer than 2^20 clients"
       for arrivals in ("poisson:0", "poisson:", "poisson:1,cv=2", "closed:0", "closed:1.5", "closed:1048576",
                        "burst:1", "gamma:1,2", "gamma:cv=1", "gamma:1,cv=0")},
    ("burst", "uniform:9,2"): "--input uniform:9,2: must be one of N, uniform:LOW,HIGH, lognormal:MEDIAN,SIGMA, of "
                              "1..100 tokens",
}  # fmt: skip


@pytest.mark.parametrize("given", WRONG)
def test_arrivals_and_lengths_that_cannot_be(given: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        draw(Drawn(given[0], 3, given[1], "1", 0, 100))
    assert str(caught.value) == WRONG[given]


def test_what_is_too_long_is_cut() -> None:
    work = Workload("w", "test", (Request(0, 0, 90, 30), Request(1, 0, 5, 5, tokens=(1, 2, 3, 4, 5))))
    assert fitted(work, 100, "refuse") is work
    assert [one.total for one in fitted(work, 100, "cut-prompt").requests] == [100, 10]
    assert fitted(work, 60, "cut-both").requests[0] == Request(0, 0, 45, 15)
    assert fitted(work, 8, "cut-both").requests[1].tokens == (2, 3, 4, 5)
    with pytest.raises(BadInputError, match=r"^request 0: 90 \+ 30 tokens cannot be cut to --max-model-len 20 by"):
        fitted(work, 20, "cut-prompt")


def test_names_of_pieces_are_keys_of_their_blocks() -> None:
    one, other = (Request(0, 0, 1024, 1, units=(1, name), unit_tokens=512) for name in (2, 3))
    first, second = prefix_keys(one, 16), prefix_keys(other, 16)
    assert len(set(first)) == 64
    assert [a == b for a, b in zip(first, second, strict=True)] == [True] * 32 + [False] * 32


def test_a_second_turn_finds_the_answer_to_the_first(tmp_path: Path) -> None:
    """512 tokens and an answer of 497 are 63 full blocks of 16: all of them are in the prompt of the second turn."""
    tokens = list(range(1109))
    calls = [
        {"input_toks": 512, "output_toks": 497, "input_tok_ids": tokens[:512]},
        {"input_toks": 1109, "output_toks": 2, "input_tok_ids": tokens},
    ]
    file = tmp_path / "turns.jsonl"
    file.write_text(json.dumps({"session_id": "s", "arrival_time_ns": 0, "sub_requests": calls}) + "\n")
    config = SchedulerConfig(blocks=200, prefix_cache=True)
    run = serve(read_workload(file), config, 1_000_000_000, lambda chunks: 100)
    assert [one.reused for one in run.served] == [0, 63 * 16]
