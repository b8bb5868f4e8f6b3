"""Without llvmlite: the default engine is another one, and says so; asking for `fast` is refused with the remedy."""

import json
import subprocess
import sys

import pytest

HIDDEN = "import sys; sys.modules['llvmlite'] = None; from pyv_npu.cli import main; sys.exit(main(sys.argv[1:]))"
PRESENT = "import sys; from pyv_npu.cli import main; sys.exit(main(sys.argv[1:]))"


def run(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_fast_is_refused_with_the_remedy():
    done = run(HIDDEN, "run", "hello", "--core", "fast")
    assert done.returncode == 64
    assert done.stderr == (
        "pyv-npu: error: command line: core.engine = fast: needs llvmlite: pip install llvmlite; use python\n"
    )


def test_the_default_is_python_and_the_result_says_so():
    pytest.importorskip("llvmlite", reason="needs llvmlite: pip install llvmlite")
    results = [json.loads(run(program, "run", "hello", "--json").stdout) for program in (HIDDEN, PRESENT)]
    assert [result["core"] for result in results] == ["python", "fast"]
    for result in results:
        del result["core"], result["host"]
    assert results[0] == results[1]
