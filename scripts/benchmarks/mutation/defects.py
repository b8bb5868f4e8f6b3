"""Former defects of the product. If one is reinserted, its regression test must fail."""

from typing import NamedTuple


class Defect(NamedTuple):
    """Correct text of a module, its former wrong text, and the regression test."""

    title: str
    path: str
    correct: str
    wrong: str
    test: str


SAMPLING = "tests/npu_device/issue/test_sampling.py::test_a_store_over_the_source_does_not_reach_a_result_that_waits"
ORDER = "tests/npu_device/issue/test_order.py::"
NOWHERE = (
    "tests/pyv_ext/engines/test_engine_interrupts.py::"
    "test_an_interrupt_goes_before_the_fetch_fault_of_an_indirect_jump_to_nowhere"
)
BOUNDS = "tests/npu_device/operations/test_bounds.py::"
STRICT = "tests/pyv_npu/coupling/test_strict.py::"
UNTOUCHED = "tests/pyv_npu/observe/test_untouched_npu.py::"
DEFECTS = (
    Defect(
        "characters are not sent back in loopback", "pyv_ext/machine/uart.py",
        "uart.looped = uart.mcr & MCR_LOOP != 0", "uart.looped = False",
        "tests/pyv_ext/engines/test_posted_stores.py::test_characters_that_are_sent_back_are_seen",
    ),
    Defect(
        "results keep a view of their source", "npu_device/reservation/results.py",
        "copy_bytes(result.data, source, size)", "result.data = source",
        SAMPLING,
    ),
    Defect(
        "a command asks for more than the host has", "npu_device/operations/limits.py", "if need > limit:",
        "if need > limit << 60:", BOUNDS + "test_pads_of_pool_that_no_host_holds",
    ),
    Defect(
        "bank utilization as blocks at the end of macro commands", "pyv_npu/report/figures.py",
        'start, end, edges = (before(moments) for moments in (rows["start"], rows["end"], edges))',
        'start, end = rows["end"] - 1, rows["end"]',
        "tests/pyv_npu/report/test_model_report.py::test_banks_are_busy_while_their_steps_run",
    ),
    Defect(
        "every slice of a model is called STORE", "pyv_npu/report/perfetto.py",
        'name = f"{Opcode(aux & OPCODE).name} {ticket}"', 'name = f"STORE {ticket}"',
        "tests/pyv_npu/report/test_perfetto.py::test_slices_of_a_model_are_called_by_what_the_engine_does",
    ),
    Defect(
        "one phase for all", "pyv_npu/studies/phases.py",
        "    random.shuffle(values)\n", "    values = [(low + high) // 2] * count\n",
        "tests/pyv_npu/studies/test_phases.py::test_the_tail_of_one_phase_is_no_verdict",
    ),
    Defect(
        "null among words of the extended block", "npu_device/abi/cmdq.py",
        'yield Fault(Code.TYPE, f"{field}.{name}", word, "must be an integer, or a list of integers")', "pass",
        "tests/npu_device/levels/test_command_list.py::test_a_broken_list_names_code_field_and_value",
    ),
    Defect(
        "ENQCMD_T takes a descriptor in ROM", "pyv_npu/coupling/custom0.py",
        "descriptor is None or not self._holds(address, DESCRIPTOR_SIZE)", "descriptor is None",
        STRICT + "test_a_descriptor_must_be_in_memory_that_the_device_sees",
    ),
    Defect(
        "tight_off: nop leaves misa.X = 1", "pyv_npu/coupling/custom0.py", "._replace(present=False)", "",
        STRICT + "test_misa_names_instructions_that_do_something",
    ),
    Defect(
        "the last characters are lost when a run ends", "pyv_npu/platform.py", "if arrived > self.clock.now:",
        "if False:", "tests/pyv_npu/platform/test_last_output.py::test_all_that_was_written_is_shown",
    ),
    Defect(
        "headers that a linker loads need memory", "pyv_ext/elf.py", "if ram is None and segment.head:", "if False:",
        "tests/pyv_ext/test_elf.py::test_headers_that_a_linker_loads_before_the_program_need_no_memory",
    ),
    Defect(
        "an atomic on a register is not counted as a bad access", "pyv_ext/machine/accesses.py",
        "refuse_access(machine, address, size, write, start)", "pass",
        STRICT + "test_an_atomic_on_a_register_is_a_fault_that_the_device_counts",
    ),
    Defect(
        "cycles without a bound", "npu_device/config.py", '"NPU cycles": 1 << 32', '"NPU cycles": 1 << 80',
        STRICT + "test_cycles_of_one_thing_are_bounded",
    ),
    Defect(
        "submissions that a soft reset takes count as rejected", "pyv_npu/observe/latency/probe.py",
        "Latency(submissions, recorder.rejected, self.t0_source, self._warmup, recorder.overwritten)",
        "Latency(submissions, recorder.rejected + recorder.overwritten, self.t0_source, self._warmup)",
        UNTOUCHED + "test_what_a_soft_reset_takes_from_the_ring_is_lost_and_not_rejected",
    ),
    Defect(
        "semihosting opens an empty file name", "pyv_ext/devices/host_files.py", "        if not parts:\n",
        "        if False:\n", "tests/pyv_npu/platform/test_semihosting_host.py::test_a_program_stays_in_its_folder",
    ),
    Defect(
        "a snapshot names a command that is not ready", "npu_device/issue/execution.py",
        'raise StateError(f"{number} is no command that is ready", "freed", position)', "pass",
        "tests/pyv_npu/snapshot/test_snapshot.py::test_the_wrong_field_is_named",
    ),
    Defect(
        "a program that never submits is watched", "pyv_ext/bus/core_log.py",
        "self._machine.submission_kinds, self._machine.doorbell = _bits(kinds), doorbell",
        "self._machine.submission_kinds, self._machine.doorbell = _bits(kinds), doorbell; self.follow()",
        UNTOUCHED + "test_own_instructions_do_not_count_as_use",
    ),
    Defect(
        "a NOP that another frees completes before its own READY", "npu_device/reservation/scheduler.py",
        "if not entry.ready or not entry.in_window:",
        "if not entry.in_window or entry.hazards or entry.barriers_pending:",
        ORDER + "test_a_nop_freed_by_another_is_ready_first_while_a_third_waits_for_its_stream",
    ),
    Defect(
        "the fetch fault of a jump to nowhere goes before an interrupt in native code",
        "pyv_ext/engines/fast/interpreter.py",
        """block("nowhere", self._word, "i64")
        self._require_budget(pc, progress)""",
        'block("nowhere", self._word, "i64")', NOWHERE,
    ),
    Defect(
        "the fetch fault of a jump to nowhere goes before an interrupt, on the slow path", "pyv_ext/engines/engine.py",
        "if hart.csrs.mip & hart.csrs.mie and self._take_interrupt():",
        "if hart.csrs.mip & hart.csrs.mie and self.bus.peek(hart.pc, 2) is not None and self._take_interrupt():",
        NOWHERE,
    ),
    Defect(
        "IA_TIMING issues in order", "npu_device/levels/runner.py", "config, self.memory, ",
        "replace(config, scheduler=replace(config.scheduler, window=1 if analytic else 16)), self.memory, ",
        "tests/oracles/test_level_error.py::test_nine_lists_of_ten_are_within_a_tenth_and_fewer_cycles_are_stepped",
    ),
    Defect(
        "what a narrow start costs has no name", "npu_device/levels/explain.py",
        "self._occupancy.lost(step.unit, step.ticket, step.begin, step.end, remaining)", "0",
        "tests/npu_device/levels/test_width.py",
    ),
    Defect(
        "values of subgraphs are read from the working directory", "toolchain/onnx_model/file.py",
        "for tensor in _tensors(proto):", "for tensor in proto.graph.initializer:",
        "tests/toolchain/onnx_model/test_hostile_models.py",
    ),
    Defect(
        "a replay of any report runs its code", "pyv_npu/cli/shared/replay.py", "if harm and not args.trusted:",
        "if False:", "tests/pyv_npu/cli/test_files_of_strangers.py",
    ),
    Defect(
        "a deep YAML file overflows the stack of the parser", "pyv_npu/config/yaml_file.py",
        "if len(collections) > MOST_DEPTH:", "if False:", "tests/pyv_npu/config/test_yaml_bounds.py",
    ),
    Defect(
        "tables of an ELF that lie over each other are read each", "pyv_native/elf_tables.py",
        "total += section.sh_size", "total = section.sh_size",
        "tests/pyv_ext/test_elf.py::test_tables_that_lie_over_each_other_are_read_as_often_as_their_bytes_allow",
    ),
    Defect(
        "a barrier of a cluster is that of the first", "npu_device/reservation/barriers.py",
        "return CLUSTER_DOMAINS + entry.cluster if", "return CLUSTER_DOMAINS if",
        "tests/npu_device/issue/test_order.py::test_clusters_have_scratchpads_engines_and_barriers_of_their_own",
    ),
    Defect(
        "ERROR_TICKET keeps the first error", "npu_device/front_end/acceptance.py",
        "    loop.front.error_ticket = ticket\n",
        "    loop.front.error_ticket = loop.front.error_ticket or ticket\n",
        "tests/npu_device/decode/test_errors.py::test_the_registers_name_the_latest_error",
    ),
    Defect(
        "lines that a store reads first are on channel 0", "npu_device/cost/durations.py",
        "shares[int(low[0]) // dram.interleave % dram.channels] +=", "shares[0] +=",
        "tests/npu_device/event_loop/test_dram.py::test_lines_that_a_store_reads_first_are_on_the_channel_of_its_first_byte",
    ),
    Defect(
        "the row after the last byte is opened", "npu_device/units/transfers.py",
        "last = (end - 1) // loop.row_bytes", "last = end // loop.row_bytes",
        "tests/npu_device/event_loop/test_dram.py::test_the_row_after_the_last_byte_stays_closed",
    ),
    Defect(
        "entries of outliers have half of their room", "npu_device/kv_quant/codec.py",
        "width // count * self.entry_bytes, PageTable.SPARSE",
        "width // count * self.entry_bytes // 2, PageTable.SPARSE",
        "tests/npu_device/kv_quant/test_methods.py::test_a_cache_that_grows_reads_as_the_codec_does_at_once",
    ),
    Defect(
        "blocks are released from the first to the last", "pyv_npu/serving/blocks.py",
        "for block in reversed(blocks):", "for block in blocks:",
        "tests/pyv_npu/serving/test_scheduler_rules.py::test_a_schedule_is_that_of_the_table",
    ),
    Defect(
        "one ticket fewer is remembered", "npu_device/reservation/tickets.py",
        "while issue.ended > issue.history:", "while issue.ended >= issue.history:",
        "tests/npu_device/issue/test_parts.py::test_tickets",
    ),
    Defect(
        "the last byte of a region makes no conflict", "npu_device/reservation/hazards.py",
        "if a.low >= b.end or b.low >= a.end:", "if a.low >= b.end - 1 or b.low >= a.end - 1:",
        "tests/npu_device/reservation/test_hazards.py::test_two_commands_are_ordered_when_their_regions_conflict",
    ),
    Defect(
        "the last byte of a watchpoint is not watched", "pyv_ext/gdb/points.py",
        "address < start + length and", "address < start + length - 1 and",
        "tests/pyv_ext/gdb/test_gdb_session.py::test_watchpoints_stop_before_the_access",
    ),
    Defect(
        "the last byte of a fault's addresses is not watched", "pyv_npu/faults/triggers.py",
        "min(last + 1, ram.end)", "min(last, ram.end)",
        "tests/pyv_npu/faults/test_injection.py::test_outcomes",
    ),
    Defect(
        "a writer waits for the end of the writer before it", "npu_device/reservation/hazards.py",
        "return not access.written or not older.written or access.low >= ACCUMULATORS_BASE", "return True",
        "tests/npu_device/reservation/test_hazards.py::test_two_commands_are_ordered_when_their_regions_conflict",
    ),
    Defect(
        "the older of two transfers waits for a bank", "npu_device/units/arbiter.py",
        "return unit if unit.run.number > other.run.number else other",
        "return unit if unit.run.number < other.run.number else other",
        "tests/npu_device/event_loop/test_sharing.py::test_of_two_transfers_the_younger_waits_for_the_bank",
    ),
)  # fmt: skip
"""Findings of an independent review, and mutants that survived on 28 November (docs/reliability.md)."""
