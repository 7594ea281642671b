"""Every kind of fault that workq is built to survive, by its number in the project's table, and the tests that show it.

Where a number is missing, nothing is meant by it. `test_rows.py` fails when a row has no test, or names one that does
not exist. A test is named as pytest prints it, from the folder `tests` on; without brackets it means all its variants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_POINT: Final = "faults/test_failpoints.py::test_a_death_at_this_point_loses_nothing"
_JOB_POINT: Final = "faults/test_failpoints.py::test_a_death_at_this_point_of_a_job_loses_nothing"
_WORKER: Final = "faults/test_worker_faults.py::test_"
_RABBITMQ: Final = "faults/test_rabbitmq_faults.py::test_"
_BROKER: Final = "faults/test_broker_loss.py::test_"
_REDIS: Final = "faults/test_redis_faults.py::test_"
_WIPE: Final = "faults/test_redis_loss.py::test_"
_LEDGER: Final = "faults/test_ledger_faults.py::"
_NETWORK: Final = "faults/test_network_faults.py::test_"
_CLOCK: Final = "faults/test_clock_faults.py::test_"
_RESOURCE: Final = "faults/test_resource_faults.py::test_"
_PEOPLE: Final = "faults/test_upgrades_and_people.py::test_"
_BEHAVIOUR: Final = "faults/test_task_behaviour.py::test_"
_AWAY: Final = "system/test_servers_away.py::test_"
_CHAOS: Final = "system/test_chaos.py::test_"
_LOST: Final = "system/test_lost_hints.py::test_"
_POISON: Final = _WORKER + "a_task_that_kills_its_process_is_dead_in_the_end_and_harms_nobody_who_had_not_started"


@dataclass(frozen=True)
class Row:
    """One kind of fault. `what` is for people; `tests` are those that let it happen and look at what it costs."""

    what: str
    tests: tuple[str, ...]


def _of_a_job(point: str) -> tuple[str, ...]:
    """A death at one named point of a job, on both legs."""
    return (f"{_JOB_POINT}[{point}-sqlite]", f"{_JOB_POINT}[{point}-servers]")


def _at(point: str) -> tuple[str, ...]:
    """A death at one named point, on both legs."""
    return (f"{_POINT}[{point}-sqlite]", f"{_POINT}[{point}-servers]")


ROWS: Final[dict[str, Row]] = {
    # a worker process
    "F1": Row(
        "killed with a hint in hand, unheld",
        (f"{_POINT}[worker.before_hold-servers]", f"{_POINT}[worker.before_commit-sqlite]"),
    ),
    "F2": Row("killed with a hold, unacked", (f"{_POINT}[worker.before_ack-servers]",)),
    "F3": Row("killed with a hold, unclaimed", _at("worker.before_claim")),
    "F4": Row("killed with a claim, not started", _at("worker.before_run")),
    "F5": Row(
        "killed while it runs, again and again",
        (
            _WORKER + "consumers_killed_at_random_lose_nothing",
            "system/test_kills.py::test_nothing_is_lost_while_a_worker_process_is_killed_every_second",
        ),
    ),
    "F6": Row("killed with an outcome, unsettled", (*_at("worker.after_run"), *_at("settle.before_write"))),
    "F7": Row("killed after it settled, before the release", _at("settle.before_release")),
    "F9": Row(
        "stopped for less than a lease", (_WORKER + "a_consumer_stopped_for_less_than_its_lease_is_not_noticed",)
    ),
    "F10": Row(
        "stopped for more than a lease",
        (_WORKER + "a_consumer_stopped_for_longer_than_its_lease_comes_back_as_a_zombie_that_is_refused",),
    ),
    "F12": Row("told to leave", (_WORKER + "a_drain_finishes_what_runs_and_hands_the_rest_back_at_no_cost",)),
    "F13": Row("told to leave, then killed", (_WORKER + "a_fleet_killed_in_the_middle_of_its_drain_loses_nothing",)),
    "F14": Row("told to leave twice", (_WORKER + "a_second_signal_ends_at_once_and_hands_back_at_no_cost",)),
    "F15": Row(
        "a task takes all the memory",
        (
            _POISON + "[servers-kill-killed by SIGKILL]",
            "faults/test_certificates.py::test_one_task_that_eats_all_memory_among_500_is_dead_and_harms_nobody",
            _BEHAVIOUR + "whatever_a_handler_raises_is_a_failure[servers-sync-memory-MemoryError]",
        ),
    ),
    "F16": Row("a task crashes in C code", (_POISON + "[servers-segfault-killed by SIGSEGV]",)),
    "F17": Row("a task hangs", (_WORKER + "a_hung_task_is_a_failure_and_its_neighbours_are_not_charged",)),
    "F18": Row(
        "a task keeps the interpreter lock",
        (_WORKER + "a_task_that_holds_the_interpreter_for_longer_than_a_lease_keeps_it_and_runs_once",),
    ),
    "F19": Row(
        "a task ends its process",
        (
            _POISON + "[servers-_exit-exit status 0]",
            _BEHAVIOUR + "whatever_a_handler_raises_is_a_failure[servers-sync-exit-SystemExit]",
        ),
    ),
    "F21": Row("the thread that beats dies", (_WORKER + "a_process_whose_beat_thread_dies_leaves_and_is_replaced",)),
    "F22": Row("all workers die at once", (_WORKER + "everything_killed_and_started_again_goes_on",)),
    "F23": Row("no room for the log", (_RESOURCE + "a_full_disk_under_the_log_stops_no_work",)),
    "F24": Row("few file descriptors", (_RESOURCE + "too_few_file_descriptors_are_a_clear_error_and_no_busy_loop",)),
    # RabbitMQ
    "F25": Row("a queue purged", (_LOST + "purged_hints_are_sent_again_once_within_the_bound",)),
    "F26": Row("the delays purged", (_LOST + "retries_lost_in_the_ladder_run_when_they_are_due",)),
    "F28": Row(
        "queues and exchanges deleted",
        (
            _BROKER + "queues_and_exchanges_deleted_under_their_consumers_come_back_and_lose_nothing",
            _RABBITMQ + "a_deleted_exchange_of_the_delays_is_declared_again",
        ),
    ),
    "F29": Row(
        "restarted in order",
        (_BROKER + "a_broker_that_is_stopped_and_started_in_order_is_joined_again_by_itself",),
    ),
    "F30": Row(
        "killed amid publishing",
        (
            _RABBITMQ + "no_confirmed_hint_is_lost_when_the_broker_is_killed_amid_publishing",
            _AWAY + "while_rabbitmq_is_down_tasks_are_enqueued_and_run_and_none_runs_twice_when_it_is_back",
        ),
    ),
    "F32": Row(
        "stopped",
        (
            _RABBITMQ + "a_stopped_broker_delays_nobody_beyond_the_own_deadline",
            _RABBITMQ + "after_a_stop_everything_goes_on",
        ),
    ),
    "F33": Row(
        "connections closed",
        (
            _RABBITMQ + "all_connections_closed_by_an_operator_come_back",
            _NETWORK + "connections_that_are_cut_again_and_again_lose_nothing_and_start_nothing_twice[broker]",
        ),
    ),
    "F34": Row("a memory alarm", (_RABBITMQ + "a_memory_alarm_stops_publishing_but_not_consuming",)),
    "F35": Row(
        "no room on its disk",
        (
            _BROKER + "a_disk_alarm_stops_the_relay_and_nothing_else",
            _RESOURCE + "a_rabbitmq_whose_disk_is_really_full_takes_nothing_and_costs_nothing",
        ),
    ),
    "F38": Row(
        "half-open connections",
        (
            _NETWORK + "a_broker_that_is_half_open_is_noticed_in_time_and_nothing_starts_twice",
            _NETWORK + "confirmations_that_never_arrive_cost_a_second_hint_and_no_second_start",
            _NETWORK + "a_redis_that_is_half_open_costs_nobody_his_lease",
            _NETWORK + "a_database_that_is_half_open_is_an_error_in_time_and_results_are_settled_afterwards",
        ),
    ),
    "F39": Row("slow", (_NETWORK + "a_slow_server_costs_speed_and_nobody_is_taken_for_dead",)),
    "F40": Row(
        "deliveries unacked for too long",
        (
            _BROKER + "a_worker_that_may_not_hold_for_longer_than_the_consumer_timeout_goes_on_afterwards",
            _RABBITMQ + "deliveries_that_lie_in_the_buffer_for_too_long_are_taken_back_and_come_again",
            "system/test_promises.py::test_a_task_longer_than_the_consumer_timeout_runs_once_and_no_channel_is_closed",
        ),
    ),
    "F41": Row(
        "killed while delayed hints expire",
        (_BROKER + "hints_that_a_killed_broker_lost_between_two_queues_of_the_delays_run_all_the_same",),
    ),
    "F42": Row(
        "one task through the delays again and again",
        ("system/test_promises.py::test_many_retries_of_one_task_all_arrive",),
    ),
    "F43": Row(
        "a queue with other arguments",
        (
            _BROKER + "a_worker_whose_queue_exists_with_other_arguments_says_so_and_leaves_with_2",
            _RABBITMQ + "a_queue_with_other_arguments_is_a_clear_error_and_is_left_alone",
        ),
    ),
    # Redis
    "F45": Row(
        "wiped",
        (
            _WIPE + "a_wipe_while_a_hundred_tasks_run_reaps_nobody_and_everything_is_held_again_in_time",
            _WIPE + "wipes_while_workers_fetch_end_no_process_and_start_nothing_twice",
        ),
    ),
    "F46": Row(
        "wiped while a worker dies",
        (_WIPE + "a_wipe_and_a_death_in_the_same_moment_cost_only_what_the_dead_ran",),
    ),
    "F48": Row(
        "killed, and back with its file",
        (
            _WIPE + "a_redis_that_was_killed_and_came_back_with_its_file_costs_nothing",
            _REDIS + "after_a_restart_calls_work_again_by_themselves_and_holds_are_kept",
        ),
    ),
    "F49": Row("down", (_AWAY + "running_tasks_settle_while_redis_is_down_and_fetching_resumes_by_itself",)),
    "F50": Row(
        "stopped",
        (
            _WIPE + "a_redis_that_stops_for_two_leases_stops_new_work_and_nothing_else",
            _REDIS + "a_stopped_redis_fails_a_call_in_time_and_runs_it_at_most_once",
        ),
    ),
    "F52": Row(
        "full",
        (
            _WIPE + "a_redis_that_is_full_stops_fetching_and_never_costs_a_hint",
            _REDIS + "a_full_redis_refuses_holds_whole_but_keeps_leases_and_lets_go",
        ),
    ),
    "F53": Row(
        "evicting",
        (_WIPE + "a_worker_does_not_start_on_a_redis_that_evicts", _REDIS + "an_evicting_policy_is_refused"),
    ),
    "F55": Row(
        "its clock jumps",
        (
            _CLOCK + "a_jump_of_the_clock_of_redis_ends_no_lease",
            _CLOCK + "who_died_before_the_clock_of_redis_went_back_is_found_all_the_same",
            _REDIS + "an_epoch_that_lies_in_the_future_begins_again",
        ),
    ),
    # the ledger
    "F57": Row(
        "restarted under load",
        (
            _LEDGER + "TestAServerThatDies::test_restarts_under_load_lose_nothing_and_settle_nothing_twice",
            _AWAY + "enqueue_says_when_the_database_is_down_and_results_are_settled_when_it_is_back",
        ),
    ),
    "F58": Row(
        "cut in COMMIT",
        (
            _LEDGER + "TestAnswersThatAreLost::test_a_settlement_is_repeated_and_reported_as_won",
            _LEDGER + "TestAServerThatDies::test_settling_survives_backends_that_are_terminated_all_the_time",
            _NETWORK + "connections_that_are_cut_again_and_again_lose_nothing_and_start_nothing_twice[ledger]",
        ),
    ),
    "F59": Row(
        "stopped, or half-open",
        (
            _LEDGER + "TestAServerThatIsSilent::test_a_stopped_server_is_an_error_in_time_and_no_hang",
            _NETWORK + "a_database_that_is_half_open_is_an_error_in_time_and_results_are_settled_afterwards",
        ),
    ),
    "F60": Row(
        "no room on its disk",
        (
            _RESOURCE + "a_ledger_on_a_disk_that_is_really_full_says_so_and_settles_when_there_is_room",
            _RESOURCE + "a_postgresql_whose_disk_is_full_costs_nothing_that_was_recorded",
            _LEDGER + "TestOneFile::test_a_full_disk_is_an_error_and_leaves_nothing_half_written",
        ),
    ),
    "F62": Row(
        "locked by somebody",
        (
            _LEDGER + "TestLocks::test_a_row_that_is_locked_delays_itself_and_nobody_else",
            _LEDGER + "TestLocks::test_a_table_that_is_locked_is_an_error_in_time",
        ),
    ),
    "F63": Row(
        "a long transaction", (_PEOPLE + "a_transaction_that_stays_open_for_long_costs_speed_and_loses_nothing",)
    ),
    "F64": Row(
        "one file, two writers",
        (
            _LEDGER + "TestOneFile::test_a_locked_database_is_waited_for",
            _LEDGER + "TestOneFile::test_a_writer_that_is_killed_leaves_nothing_half_written",
        ),
    ),
    # time, topology, people
    "F65": Row("a worker's clock jumps", (_CLOCK + "a_jump_of_the_clock_of_a_workers_host_changes_nothing",)),
    "F66": Row(
        "the database's clock jumps",
        (_CLOCK + "a_jump_of_the_clock_of_the_database_makes_tasks_early_and_ends_no_lease",),
    ),
    "F67": Row("a sweeper asleep", (_CLOCK + "a_sweeper_that_was_suspended_makes_up_for_it_with_one_pass",)),
    "F68": Row(
        "ten sweepers",
        (
            "system/test_sweep.py::test_ten_sweeps_at_once_publish_each_unpublished_task_once",
            "cli/test_sweep.py::test_sweeps_at_the_same_time_do_together_what_one_does",
        ),
    ),
    "F69": Row(
        "a sweeper dies half-way",
        (
            _PEOPLE + "what_a_dead_sweeper_had_taken_is_published_once_by_the_others",
            *_at("sweep.before_relay"),
            *_at("sweep.before_promote"),
            *_at("sweep.before_advance"),
            *_at("sweep.before_admit"),
            *_of_a_job("sweep.before_tend"),
            *_at("sweep.before_tick"),
            *_at("sweep.after_tick"),
            *_at("sweep.before_reap"),
            *_at("sweep.before_unhint"),
            *_at("sweep.before_forget"),
            *_at("sweep.before_hints"),
            *_at("sweep.before_marker"),
            *_at("sweep.before_repair"),
        ),
    ),
    "F70": Row(
        "everything killed",
        (
            _AWAY + "everything_killed_and_started_again_finishes_everything",
            _CHAOS + "nothing_is_lost_on_three_servers_whatever_strikes",
        ),
    ),
    "F72": Row(
        "old and new workers together",
        (
            _PEOPLE + "hints_of_a_newer_version_wait_for_a_worker_that_reads_them",
            _BEHAVIOUR + "a_name_without_a_handler_waits_visibly_at_no_cost_and_is_dead_in_the_end",
        ),
    ),
    "F74": Row(
        "rows edited by hand",
        (
            _PEOPLE + "nonsense_in_the_ledger_is_refused_by_it_and_when_it_is_forced_in_the_audit_tells",
            "contract/test_ledger_contract.py::TestPostgreSQL::test_the_schema_forbids_what_must_never_be_stored",
        ),
    ),
}
