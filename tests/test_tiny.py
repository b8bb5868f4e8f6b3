"""The whole product in one short file. Kept green for ever."""

import json
import subprocess
import sys

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import Opcode
from pyv_ext.engines.core import StopReason
from pyv_ext.isa import Isa
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.workloads.firmware import Firmware, run_program
from pyv_npu.workloads.workload import compare


def test_firmware_runs_and_says_hello() -> None:
    platform = Platform(load().config)
    platform.load(find_program("hello"))
    stop = platform.run()
    assert (stop.reason, stop.code) == (StopReason.EXIT, 0)
    assert "NPU: at 0x40000000" in platform.console.text


def test_loose_and_tight_leave_the_same_results_and_tight_is_accepted_sooner() -> None:
    config = load(overrides={"run.args.n": 30}).config
    result = compare(Firmware("submit_latency").prepare(config), config)
    assert result.json["same_results"]
    assert result.loose.latency.stage("t_submit").p50 > result.tight.latency.stage("t_submit").p50
    for run in (result.loose, result.tight):
        latency = run.json["latency"]
        assert latency["n"] == 90
        assert sum(latency["reasons"].values()) == run.latency.stage("t_submit").total


def test_gemm_through_the_scratchpad_is_checked_by_the_core() -> None:
    result = run_program(load().config, "gemm")
    assert result.exit_code == 0
    assert result.json["npu"]["completed"] == result.json["npu"]["accepted"] > 0


def test_a_run_repeats_itself_to_the_event() -> None:
    first, second = (run_program(load().config, "irq_completion").json for _ in range(2))
    del first["host"], second["host"]
    assert first == second


def test_one_table_decodes_and_disassembles() -> None:
    isa = Isa("rv32im_zicsr_zifencei")
    assert isa.disassemble(isa.encode("mul", rd=10, rs1=11, rs2=12), 0) == "mul\ta0,a1,a2"


def test_a_descriptor_is_64_bytes_both_ways() -> None:
    descriptor = Descriptor(opcode=Opcode.GEMM_T, tile_m=128, tile_n=128, tile_k=64, ticket=7)
    assert len(descriptor.pack()) == 64
    assert Descriptor.unpack(descriptor.pack()) == descriptor


def test_the_command_line_prints_one_json_object() -> None:
    command = [sys.executable, "-m", "pyv_npu", "run", "hello", "--mode", "loose", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["mode"] == "loose"
