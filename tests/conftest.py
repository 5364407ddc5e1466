"""Settings of every test."""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Tests share the machine with the ranks of others: how long an example takes says nothing.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# The same examples every time, so that a change is judged by itself.
settings.register_profile("syncopate", settings.get_profile("explore"), derandomize=True)
settings.load_profile("syncopate")

# Plans of tests are kept for no other run, and tests get none of the user's.
os.environ["SYNCOPATE_CACHE"] = "off"

# A process started in the background of a script ignores interrupts, one under nohup hang-ups, and
# so would all that tests start.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

MOST_WORKERS = 4

_RANKS = "tests/multiprocess"
_AS_SAID = "test_the_engine_does_what_algorithms_1_and_2_say"
_LIKE_DDP = "test_every_policy_and_algorithm_trains_like_ddp"
_LABELLED = "tests/unit/analysis/labelled/test_labelled.py"
_ANOTHER = "test_another_process_goes_on_in_the_middle_of_the_step_with_the_same_bits"
_SERVED = f"{_RANKS}/exchange/serving/test_served.py"

FULL = {
    "tests/lab/": "emulated clusters: hosts, racks, links that are cut",
    f"{_RANKS}/recipes/": "frameworks",
    f"{_RANKS}/checkpoints/test_restart.py": "jobs that are killed and started again",
    f"{_RANKS}/collectives/test_failure.py": "faults",
    f"{_RANKS}/c10d/test_failure.py": "faults",
    f"{_RANKS}/c10d/test_conformance.py": "torch's own tests",
    f"{_RANKS}/c10d/test_training.py::test_fsdp2_over_our_links": "two backends",
    f"{_RANKS}/c10d/test_training.py::test_a_mesh_of_two": "many ranks",
    f"{_RANKS}/c10d/test_training.py::test_three_ranks": "many ranks",
    f"{_RANKS}/c10d/test_group.py::test_groups[3": "many ranks",
    f"{_RANKS}/c10d/test_operations.py::test_every_operation_and_dtype_is_gloos[3": "many ranks",
    f"{_RANKS}/cli/test_command_line.py::test_a_killed": "faults",
    f"{_RANKS}/cli/test_command_line.py::test_an_interrupt": "faults",
    f"{_RANKS}/cli/test_command_line.py::test_under_torchrun": "another launcher",
    f"{_RANKS}/exchange/test_failure.py": "faults",
    f"{_RANKS}/paramserver/test_loss.py": "faults",
    f"{_RANKS}/paramserver/test_moving.py::test_all_that": "faults",
    f"{_RANKS}/paramserver/test_moving.py::test_a_server_or": "faults",
    f"{_RANKS}/paramserver/test_moving.py::test_a_worker_that": "faults",
    f"{_RANKS}/paramserver/test_restart.py::test_a_job_whose_worker_is_killed[twice": "faults",
    f"{_RANKS}/paramserver/test_restart.py::test_a_job_whose_worker_is_killed[and": "faults",
    f"{_RANKS}/paramserver/test_restart.py::test_a_worker_that_raises": "faults",
    f"{_RANKS}/paramserver/test_restart.py::test_a_server_that_is_killed": "faults",
    f"{_RANKS}/paramserver/test_rows.py::test_servers_that_are_killed": "faults",
    f"{_RANKS}/paramserver/test_rows.py::test_lost_doubled": "faults",
    f"{_RANKS}/exchange/serving/test_tables.py::test_tables_go_on": "jobs of many processes",
    f"{_RANKS}/paramserver/test_strangers.py": "faults",
    f"{_RANKS}/paramserver/test_command.py": "jobs of many processes",
    f"{_RANKS}/collectives/test_strangers.py": "faults",
    f"{_RANKS}/collectives/test_time_limit.py": "faults",
    f"{_RANKS}/cli/test_demo.py": "the demo, on real ranks",
    f"{_RANKS}/benchmarking/test_mpi.py": "another launcher",
    f"{_RANKS}/delay/test_deferred.py": "every corner of a delay",
    f"{_RANKS}/delay/test_habits.py": "every corner of a delay",
    f"{_RANKS}/delay/test_served.py": "every corner of a delay",
    f"{_RANKS}/delay/test_state.py": "every corner of a delay",
    f"{_RANKS}/delay/test_diloco.py": "every corner of local SGD",
    f"{_RANKS}/delay/test_local_sgd_state.py": "every corner of local SGD",
    f"{_RANKS}/reproduce/": "what papers did",
    "tests/test_typed.py": "mypy, of torch too",
    f"{_RANKS}/test_extensions.py": "jobs of many processes",
    f"{_RANKS}/collectives/test_narrow.py": "16 bits, by every algorithm",
    f"{_RANKS}/collectives/test_stages.py": "every grid, order, size and dtype",
    f"{_RANKS}/tracing/test_profiler.py": "jobs of many processes",
    f"{_RANKS}/tracing/test_record.py": "jobs of many processes",
    "tests/conformance/test_execution.py": "every algorithm, dtype, size and root on real ranks",
    "tests/conformance/test_narrow.py": "16 bits, by every algorithm",
    "tests/conformance/test_shards_of_any_length.py": "shards of any length, by every algorithm",
    f"{_RANKS}/engine/test_narrow.py": "16 bits, in every exchange",
    f"{_RANKS}/exchange/proxies/test_gradients.py": "every look at a part of a gradient",
    f"{_RANKS}/exchange/test_loop.py": "every loop around a sharded step",
    f"{_RANKS}/exchange/test_parts.py": "tensors in parts, in every exchange",
    f"{_RANKS}/paramserver/test_capture.py": "traces of servers",
    f"{_RANKS}/engine/test_selfplan.py::test_outcomes": "every end of self-planning",
    f"{_RANKS}/engine/test_replan.py::test_all_plan": "every reason to plan again",
    f"{_RANKS}/engine/test_equivalence.py::{_LIKE_DDP}[4": "2 ranks are in a newcomer's run",
    f"{_RANKS}/ddp/test_failure.py": "faults",
    f"{_RANKS}/ddp/test_like_ddp.py::test_programs_do": "every habit of a script in DDP",
    f"{_RANKS}/ddp/test_like_ddp.py::test_compiled": "compiled code",
    f"{_RANKS}/ddp/test_plans.py::test_what_ddp_cannot": "every order of gradients",
    f"{_RANKS}/engine/test_apart.py": "every end of one rank",
    f"{_RANKS}/engine/test_join.py": "every case of unequal inputs",
    f"{_RANKS}/engine/test_ownership.py": "every owner of a gradient",
    f"{_RANKS}/engine/test_habits.py": "every habit of torch",
    f"{_RANKS}/cli/test_command_line.py::test_from_calibration": "the demo goes the same way",
    f"{_RANKS}/cli/test_command_line.py::test_one_refusal": "every refusal",
    f"{_RANKS}/checkpoints/test_checkpoint.py": "every optimizer and exchange",
    **{
        f"{_RANKS}/collectives/test_results.py::test_right_and_bit_identical[{ranks}": "many ranks"
        for ranks in range(5, 10)
    },
    **{
        f"{_RANKS}/delay/test_delay.py::{_AS_SAID}[{ranks}": "3 ranks are in a newcomer's run"
        for ranks in (2, 4)
    },
    f"{_RANKS}/delay/test_local_sgd.py::test_a_script_trains": "every corner of local SGD",
    f"{_RANKS}/delay/test_local_sgd.py::test_the_engine_does": "every corner of local SGD",
    f"{_RANKS}/exchange/serving/test_asynchronous.py": "every asynchronous rule",
    f"{_SERVED}::test_a_job_on_this": "jobs of many processes",
    f"{_SERVED}::test_servers_train_as_one_process_does[adam": "SGD is in a newcomer's run",
    f"{_SERVED}::test_servers_train_as_one_process_does[momentum": "SGD is in a newcomer's run",
    f"{_RANKS}/exchange/proxies/test_gathered.py": "every look at a gathered gradient",
    f"{_RANKS}/exchange/proxies/test_reads.py::test_graphs": "compiled code",
    f"{_RANKS}/exchange/test_models.py": "models of many kinds",
    f"{_RANKS}/exchange/test_replicated.py": "replicated buckets, in every exchange",
    f"{_RANKS}/exchange/test_steps.py": "every way to step",
    f"{_RANKS}/test_contest.py": "the contest of the benchmarks",
    f"{_RANKS}/exchange/test_drawn.py": "drawn cases",
    f"{_RANKS}/exchange/test_equivalence.py": "every exchange, optimizer and plan",
    f"{_RANKS}/exchange/test_tensors.py": "every kind of tensor",
    f"{_RANKS}/programs/test_full_size.py": "models of full size beside DDP",
    f"{_RANKS}/programs/test_programs.py": "hundreds of programs beside DDP",
    f"{_RANKS}/programs/test_measured.py::test_every": "hundreds of programs beside DDP",
    f"{_RANKS}/engine/test_selfplan.py::test_a_kept_plan": "every end of self-planning",
    f"{_RANKS}/engine/test_selfplan.py::test_one_process": "every end of self-planning",
    f"{_RANKS}/engine/test_errors.py": "faults",
    f"{_RANKS}/engine/test_sparse_rows.py": "faults",
    f"{_RANKS}/engine/test_buffers.py::test_every_training_forward": "every kind of buffer",
    f"{_RANKS}/engine/test_start.py::test_a_kept_plan": "every way to start",
    f"{_RANKS}/engine/test_start.py::test_a_plan_of_more": "every way to start",
    f"{_RANKS}/exchange/test_decoupled.py::test_a_backward_that_fails": "faults",
    f"{_RANKS}/exchange/test_overlap.py::test_a_step_waits": "every order of pulls",
    f"{_RANKS}/delay/test_local_sgd.py::test_it_is_torch_s": "every corner of local SGD",
    f"{_RANKS}/delay/test_local_sgd.py::test_weights_travel": "every corner of local SGD",
    f"{_RANKS}/delay/test_local_sgd.py::test_without_a_plan": "every corner of local SGD",
    f"{_RANKS}/delay/test_local_sgd.py::test_a_rank_that_dies": "faults",
    f"{_RANKS}/delay/test_delay.py::test_a_rank_holds": "every corner of a delay",
    f"{_RANKS}/delay/test_delay.py::test_one_step_without": "every corner of a delay",
    f"{_RANKS}/delay/test_delay.py::test_nothing_waits": "every corner of a delay",
    f"{_RANKS}/delay/test_delay.py::test_pulls_that_go_behind": "every corner of a delay",
    f"{_RANKS}/collectives/test_results.py::test_part_of_the_job": "parts of a job",
    f"{_RANKS}/collectives/test_rooted.py::test_refusals": "every refusal",
    f"{_RANKS}/benchmarking/test_bench.py::test_the_command": "every table of the bench",
    f"{_SERVED}::test_a_training_goes_on": "jobs that are started again",
    f"{_SERVED}::test_what_servers_cannot_do": "every refusal",
    f"{_SERVED}::test_nobody_goes_on": "faults",
    "tests/unit/tracing/test_killed.py": "processes that are killed",
    "tests/unit/cli/test_record.py::test_what_was_written": "processes that are killed",
    "tests/unit/tracing/test_trace_file.py::TestThinning::test_a_bound_on": "long runs",
    "tests/unit/benchmarks/test_scripts.py::test_every_benchmark": "every benchmark",
    f"{_LABELLED}::test_drawn_in_other_forms": "drawn trainings",
    **{
        f"{_LABELLED}::test_drawn_trainings[{begin}": "drawn trainings"
        for begin in range(28, 252, 56)
    },
    "tests/unit/costs/test_beyond_samples.py::test_no_plan": "drawn cases",
    "tests/unit/planning/whatif/test_study.py": "every answer of a sweep",
    "tests/unit/validation/test_session.py": "every end of a grid",
    "tests/unit/planning/test_both_ways.py": "drawn cases",
    "tests/unit/costs/test_blocks.py": "every size of a block",
    f"{_RANKS}/checkpoints/test_files.py": "every file of a checkpoint",
    "tests/unit/simulation/test_reproduce_table_2.py::test_every_cell": "what papers did",
    "tests/unit/zoo/test_zoo.py::TestDigits::test_resnet20": "a training to its end",
    f"{_RANKS}/c10d/test_training.py::test_powersgd_of_several_buckets_keeps_the_ranks_alike[3": (
        "many ranks"
    ),
    f"{_RANKS}/c10d/test_units.py::test_what_is_kept_is_gathered_once": "every way",
    f"{_RANKS}/c10d/test_units.py::test_a_recording_leads_to_a_plan": "every way",
    f"{_RANKS}/benchmarking/test_bench.py::test_every_collective": "every algorithm",
    f"{_RANKS}/ddp/test_plans.py::test_the_fastest_kept_plan": "every way",
    f"{_RANKS}/delay/test_delay.py::test_the_engine_does_what_algorithms_1_and_2_say[3": (
        "many ranks"
    ),
    f"{_RANKS}/paramserver/test_updaters.py::test_the_command_line_says_what_servers_may_import"
    "[F": "every way",
    "tests/unit/planning/test_planner.py::test_optimal_is_behind_no_policy_with_several_dtypes_on_"
    "several_levels": "every policy",
    f"{_RANKS}/c10d/test_units.py::test_four_ranks": "many ranks",
    f"{_RANKS}/engine/test_published.py::test_each_rank_publishes_its_own_figures[s": (
        "every exchange"
    ),
    f"{_RANKS}/engine/test_replan.py::test_a_link": "every reason to plan again",
    f"{_RANKS}/exchange/serving/test_groups.py::test_groups_train_on_servers_as_in_one_process[a": (
        "SGD is in a newcomer's run"
    ),
    f"{_RANKS}/exchange/serving/test_tables.py::test_tables_train_as_in_one_process[a": (
        "SGD is in a newcomer's run"
    ),
    f"{_RANKS}/exchange/serving/test_tables.py::test_tables_on_asynchronous": "every rule",
    f"{_RANKS}/paramserver/test_again.py::test_a_job_that_ended": "jobs that are started again",
    f"{_RANKS}/paramserver/test_again.py::test_all_that_is_killed_goes_on_from_the_last_step_with_the"
    "_same_bits[steps1": "jobs that are killed twice",
    f"{_RANKS}/paramserver/test_silence.py::test_a_scheduler_killed_twice": "faults",
    f"{_RANKS}/paramserver/test_silence.py::test_a_server_that_was_stopped_goes_on_and_leaves_no_trace"
    "[False": "faults",
    "tests/unit/cli/test_record.py::test_processes_that_load_data": "jobs of many processes",
    "tests/unit/protocol/test_exactly_once.py::test_a_network_that_loses_nothing_needs_no_message_"
    "twice[slow": "networks of every speed",
    f"{_RANKS}/cli/test_ended.py": "commands that are ended midway",
    f"{_RANKS}/paramserver/test_restart.py::test_a_job_whose_worker": "jobs that are started again",
    f"{_RANKS}/programs/test_measured.py::test_corners": "hundreds of programs beside DDP",
    f"{_RANKS}/c10d/test_compiled.py": "compiled code",
    f"{_LABELLED}::test_drawn_trainings[0": "drawn trainings",
    **{
        f"{_RANKS}/paramserver/test_again.py::test_{name}": "jobs that are started again"
        for name in ("all_that_is_killed", "servers_that_live", "servers_without", "tables_go")
    },
    f"{_RANKS}/calibration/test_calibration.py::test_four": "many ranks",
    "tests/unit/protocol/test_exactly_once.py::test_asynchronous": "networks of every kind",
    f"{_RANKS}/paramserver/test_status.py::test_a_server_publishes": "every node's metrics",
    f"{_RANKS}/paramserver/test_status.py::test_every_node": "every node's metrics",
    "tests/unit/test_pictures.py::test_terminals": "every picture",
    "tests/unit/protocol/gradients/test_clipping.py::test_workers_may": "networks of every kind",
    **{
        f"{_RANKS}/c10d/test_units.py::test_{name}": "every way"
        for name in ("others_say", "what_a_plan", "a_model_under", "weights_are_asked")
    },
    f"{_RANKS}/c10d/test_group.py::test_torch_knows_the_backend_whichever_is_imported_first[t": (
        "every order of imports"
    ),
    f"{_RANKS}/c10d/test_training.py::test_powersgd_of_several": "many ranks",
    f"{_RANKS}/paramserver/test_silence.py::test_a_server_that_was_stopped": "faults",
    f"{_RANKS}/paramserver/test_silence.py::test_a_worker_killed": "faults",
    "tests/unit/test_extensions.py::test_a_broken_package": "every command",
    f"{_RANKS}/paramserver/test_many.py::test_a_hundred_thousand": "many keys",
    f"{_RANKS}/collectives/test_results.py::test_right_and_bit_identical[3": "many ranks",
    f"{_RANKS}/collectives/test_results.py::test_without_private": "every torch",
    f"{_RANKS}/delay/test_local_sgd.py::test_what_cannot": "every refusal",
    f"{_RANKS}/delay/test_local_sgd.py::test_a_warm_up": "every corner of local SGD",
    **{
        f"{_RANKS}/ddp/test_plans.py::test_{name}": "every way"
        for name in ("a_plan_for_messages", "what_cannot", "the_public_backend")
    },
    **{
        f"{_RANKS}/programs/test_beside_ddp.py::test_a_program_trains_as_under_ddp[{name}": (
            "hundreds of programs beside DDP"
        )
        for name in (
            *(
                "gradient_hooks",
                "types_there",
                "a_helper",
                "traces_and",
                "scripted",
                "global_hooks",
            ),
            *("the_model_without", "gradients_scaled", "conversions"),
        )
    },
    f"{_RANKS}/paramserver/test_updaters.py::test_the_command_line": "every way",
    f"{_RANKS}/paramserver/test_updaters.py::test_a_class_that_looks": "every way",
    f"{_RANKS}/paramserver/test_moving.py::test_a_job_goes_on": "faults",
    f"{_RANKS}/paramserver/test_moving.py::test_a_job_that_moves_has_the_bits_of_one_that_stays["
    "clipped": "every rule",
    f"{_RANKS}/paramserver/test_clipping.py::test_servers_that_are_killed": "faults",
    f"{_SERVED}::test_a_served_training": "traces of servers",
    f"{_RANKS}/exchange/serving/test_groups.py::test_many_small": "many keys",
    f"{_RANKS}/exchange/serving/test_updaters.py": "every way",
    f"{_RANKS}/exchange/serving/test_tables.py::test_what_servers": "every refusal",
    "tests/test_mutants.py": "planted faults",
    f"{_RANKS}/engine/test_published.py::test_each_rank_publishes_its_own_figures[d": (
        "every exchange"
    ),
    f"{_RANKS}/engine/test_published.py::test_a_writer": "faults",
    f"{_RANKS}/engine/test_published.py::test_the_environment": "every way",
    f"{_RANKS}/tracing/test_capture.py::test_an_average": "every exchange",
    "tests/unit/benchmarks/test_replay_lab.py": "every benchmark",
    **{
        f"{_RANKS}/paramserver/test_wait.py::test_{name}": "faults"
        for name in (
            *("workers_die", "a_worker_and_others", "tables_are", "asynchronous_pushes"),
            *("a_second_process", "a_job_ends", "a_worker_that_raises"),
        )
    },
    **{
        f"{_RANKS}/paramserver/test_wait.py::{_ANOTHER}[{where}": "faults"
        for where in ("0", "1-11", "1-joined")
    },
    f"{_RANKS}/exchange/serving/test_waiting.py": "faults",
    f"{_RANKS}/paramserver/test_again.py::test_asynchronous": "jobs that are started again",
    f"{_RANKS}/paramserver/test_many.py::test_a_server_killed": "faults",
    "tests/unit/protocol/test_exactly_once.py::test_synchronous": "networks of every kind",
    "tests/unit/cli/test_refusals.py": "every refusal",
    "tests/conformance/test_price.py::test_any_price": "drawn cases",
    "tests/conformance/test_programs.py::test_any_": "drawn cases",
    "tests/conformance/test_proof.py::test_proved_for_any": "drawn cases",
    "tests/unit/calibration/racks/test_racks.py::TestSearch": "networks of every kind",
    f"{_RANKS}/collectives/test_rooted.py::test_every_root_and_dtype[3": "many ranks",
    f"{_RANKS}/collectives/test_results.py::test_right_and_bit_identical[4": "many ranks",
    f"{_RANKS}/collectives/test_without_mesh.py": "a network that is cut",
    f"{_RANKS}/collectives/test_life.py": "every end of a communicator",
    f"{_RANKS}/delay/test_delay.py::test_weights_are_pulled": "every corner of a delay",
    f"{_RANKS}/c10d/test_training.py::test_programs_train_as_over_gloo": "every way",
    f"{_RANKS}/programs/test_beside_ddp.py::test_a_program_trains_as_under_ddp[hooks_on": (
        "hundreds of programs beside DDP"
    ),
    f"{_LABELLED}::test_otherwise": "drawn trainings",
    "tests/unit/protocol/test_places_taken.py": "networks of every kind",
    "tests/unit/reports/test_run_page_in_browser.py": "a browser",
    f"{_RANKS}/paramserver/test_narrow.py": "gradients of 16 and 8 bits",
    f"{_RANKS}/ddp/test_plans.py::test_a_recording": "every way",
    f"{_RANKS}/tracing/test_replayed.py": "every exchange",
    f"{_RANKS}/exchange/test_decoupled.py::test_a_forward_that": "faults",
    "tests/test_install.py": "installs",
}
"""What a newcomer's run leaves out, by the beginnings of their names, and what is there.

Each room is in what stays, and each exchange on real ranks.
"""

EXTRAS = {
    f"{_RANKS}/recipes/": "frameworks",
    f"{_RANKS}/benchmarking/test_mpi.py": "mpi4py and mpirun",
    f"{_RANKS}/delay/test_diloco.py": "torchft",
    "tests/unit/tracing/foreign/test_readers.py": "HolisticTraceAnalysis, protoc, Perfetto",
    "tests/test_site.py": "mkdocs-material",
    "tests/unit/test_first_steps.py": "nbclient and ipykernel",
    "tests/test_deploy.py": "kubernetes-validate, dockerfile-parse",
    "tests/unit/cli/test_completion.py": "zsh and fish",
    "tests/unit/reports/test_run_page_in_browser.py": "Chromium and its driver",
}
"""What is skipped, whole or in part, without an optional dependency, and which that is."""

NOT_TO_INSTALL = (
    "needs a CUDA device",
    "needs a torch built with NCCL",
    "NCCL takes one rank per GPU",
    "et_def.proto",
    "trace_processor_shell",
)
"""What reasons of skips say that no package mends: GPUs, Chakra's schema, Perfetto's download."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--no-skips``."""
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail tests that are skipped, but for what no package mends",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that belong to the full suite alone, and those with optional dependencies."""
    for item in items:
        for marker, table in (("full", FULL), ("extras", EXTRAS)):
            if any(item.nodeid.startswith(name) for name in table):
                item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what is skipped, where that is asked for."""
    report = yield
    if not hasattr(report, "wasxfail"):
        _require_run(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail files that are skipped, where that is asked for."""
    report = yield
    _require_run(report, collector.config)
    return report


def _require_run(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    if not (report.skipped and config.getoption("--no-skips")):
        return
    reason = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr)
    if not any(known in reason for known in NOT_TO_INSTALL):
        report.outcome, report.longrepr = "failed", f"skipped with --no-skips: {reason}"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Name failures when they happen."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config), "failures")


class _Failures:
    """Names each test that fails, at once."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name of a test that failed."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when})", red=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than the cores for ``-n auto``: part of their time tests wait for ranks."""
    return min((os.cpu_count() or 1) + 1, MOST_WORKERS)
