"""Fixtures and Hypothesis profiles that all tests share.

Environment variables:

- ``HYPOTHESIS_PROFILE``: ``fast`` (the default), ``ci`` (the default where ``CI=true``) or
  ``nightly``
- ``ZARR_DASK_PUBLIC_DATA``: a directory with stores that other projects published, by default
  ``../shared/public-data`` beside the checkout
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
from contextlib import ExitStack
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING

import dask
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import icechunk
    from distributed import Client, LocalCluster
    from xdist.scheduler import LoadFileScheduling

# Helpers hold no tests, and some are scripts for another environment.
collect_ignore = ["support"]
pytest.register_assert_rewrite("zarr_dask.testing", "tests.support")
# Read when gcsfs is imported, by whatever test is the first: it would ask over gRPC what kind a
# bucket is, which no server of the tests knows.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

# Modules that take long, which their number of tests does not tell: one each for two processes.
LONG = (
    "tests/product/test_kills.py",
    "tests/stores/test_faults.py",
    "tests/product/test_servers.py",
    "tests/stores/backends/test_s3.py",
    "tests/cli/test_cli.py",
    "tests/examples/test_demo.py",
    "tests/jobs/rechunk/test_rechunk.py",
    "tests/cli/test_plan_file.py",
    "tests/jobs/simulation/test_processes.py",
    "tests/product/test_write_races.py",
    "tests/graph/test_index_prefetch.py",
    "tests/jobs/write/test_running.py",
    "tests/product/test_rechunk_kills.py",
    "tests/ome/test_jobs.py",
    "tests/jobs/write/test_shared.py",
    "tests/stores/test_secrets.py",
    "tests/jobs/rechunk/test_resume.py",
    "tests/product/test_hostile.py",
    "tests/benchmarks/test_benchmarks.py",
    "tests/product/test_icechunk_cluster.py",
    "tests/jobs/rechunk/test_cluster.py",
    "tests/jobs/write/test_swap.py",
    "tests/jobs/write/test_append_conflicts.py",
    "tests/stores/test_mounts.py",
    "tests/stores/backends/test_fsspec.py",
    "tests/array/test_revalidate.py",
    "tests/ome/test_remote.py",
    "tests/jobs/copy/test_copy_s3.py",
    "tests/product/test_dask_suite.py",
    "tests/product/test_ome_peers.py",
    "tests/jobs/rechunk/test_few_blocks.py",
    "tests/jobs/engine/test_credentials.py",
    "tests/graph/test_schedulers.py",
    "tests/xarray/test_kills.py",
    "tests/product/zarr2/test_zarr2.py",
)

# What CI runs besides (`make test-ci`): comparisons with other libraries and their suites,
# services, examples, pages; many processes, much memory, large inputs, of which other tests have
# small ones.
IN_CI_ONLY = (
    "tests/array/test_large_chunks.py::test_large_chunks_are_what_numpy_has",
    "tests/array/test_object_versions.py",
    "tests/array/test_view.py::test_names_are_the_same_in_another_process",
    "tests/benchmarks/",
    "tests/cli/test_cli.py::test_a_second_signal_ends_a_job_at_once",
    "tests/cli/test_cli.py::test_a_signal_ends_a_job_when_its_tasks_have",
    "tests/cli/test_cli.py::test_an_address_without_a_port_is_refused_with_one_message",
    "tests/cli/test_cli.py::test_broken_pipe_is_silent",
    "tests/cli/test_cli.py::test_looking_loads_nothing_heavy",
    "tests/cli/test_cli.py::test_progress_of_several_stages_without_a_terminal",
    "tests/cli/test_cli.py::test_rechunk_on_local_processes",
    "tests/cli/test_doctor.py::test_bash_completes",
    "tests/cli/test_plan_file.py::test_a_plan_as_a_whole_needs_no_dask",
    "tests/cli/test_plan_file.py::test_a_region",
    "tests/cli/test_plan_file.py::test_a_signal_ends_a_comparison_too",
    "tests/cli/test_plan_file.py::test_jobs_of_a_script_get_its_options_of_object_stores",
    "tests/cli/test_plan_file.py::test_sigterm_finishes_the_object_at_hand",
    "tests/cli/test_plan_file.py::test_stages_in_parts_by_several_processes",
    "tests/cli/test_plan_file.py::test_the_status_is_watched_until_the_end",
    "tests/cli/test_settings.py::test_a_plan_in_a_pipe",
    "tests/codecs/compress/test_blosc_frames.py::test_regions_of_chunks_through_all_ways_to_read",
    "tests/codecs/compress/test_compress.py::test_ever_so_many_streams",
    "tests/codecs/compress/test_compress.py::test_large_streams_are_decoded_in_place",
    "tests/examples/",
    "tests/formats/test_documents.py::test_documents_that_are_large_by_right_are_read",
    "tests/formats/test_documents.py::test_no_document_takes_more_memory_than_is_said",
    "tests/formats/test_handles.py::test_closed_handles_are_forgotten",
    "tests/formats/test_parse_cache.py::test_the_same_with_and_without_what_is_known",
    "tests/graph/test_index_prefetch.py",
    "tests/graph/test_pickles.py::test_the_array_expr_backend_is_refused_by_name",
    "tests/graph/test_plain.py::test_a_call_has_the_same_token_in_each_process",
    "tests/graph/test_schedulers.py::test_after_a_fork",
    "tests/grid/test_rectilinear.py::test_a_million_cells_are_fast_and_small",
    "tests/hierarchy/test_key_swap.py::test_a_job_that_died_goes_on",
    "tests/hierarchy/test_key_swap.py::test_a_killed_job_leaves_one_version_or_the_other",
    "tests/hierarchy/test_key_swap.py::test_arrays_of_any_number_of_dimensions",
    "tests/hierarchy/test_key_swap.py::test_several_arrays_and_one_that_is_computed_later",
    "tests/hierarchy/test_key_swap.py::test_versions_alternate_between_two_layouts_of_keys",
    "tests/hierarchy/test_links.py::test_tampered_jobs_are_refused",
    "tests/jobs/copy/test_copy_s3.py",
    "tests/jobs/engine/test_connect.py::test_jobs_and_ranks_run_without_extras",
    "tests/jobs/engine/test_credentials.py",
    "tests/jobs/engine/test_equal_calls.py",
    "tests/jobs/engine/test_in_flight.py",
    "tests/jobs/engine/test_resume.py"
    "::test_a_record_of_an_append_that_is_damaged_is_not_passed_over",
    "tests/jobs/engine/test_resume.py"
    "::test_several_jobs_that_die_while_their_journals_go_are_not_done_twice",
    "tests/jobs/engine/test_resume.py::test_the_graph_of_what_is_missing_stays_small",
    "tests/jobs/engine/test_resume.py::test_tokens_are_the_same_in_every_process",
    "tests/jobs/engine/test_worker_watch.py::test_a_comparison_of_a_dask_array_whose_worker_dies",
    "tests/jobs/engine/test_worker_watch.py::test_a_rechunking_whose_last_worker_has_died",
    "tests/jobs/engine/test_worker_watch.py::test_a_stopped_worker_keeps_no_others_answers_back",
    "tests/jobs/engine/test_worker_watch.py::test_a_write_whose_only_worker_dies_of_it",
    "tests/jobs/engine/test_worker_watch.py::test_workers_that_a_local_cluster_gives_up",
    "tests/jobs/engine/test_workers.py::test_a_job_on_threads_does_not_load_distributed",
    "tests/jobs/engine/test_workers.py::test_a_script_without_guard_writes_once",
    "tests/jobs/ingest/test_broken_inputs.py::test_odd_contents_are_named_with_their_variable",
    "tests/jobs/ingest/test_grib.py",
    "tests/jobs/ingest/test_ingest.py::test_a_fresh_worker_grows_by_no_more_than_planned",
    "tests/jobs/ingest/test_ingest.py::test_files_of_every_writer_are_what_xarray_reads",
    "tests/jobs/migrate/test_migrate.py::test_interrupted_anywhere_all_can_be_read_and_run_again",
    "tests/jobs/migrate/test_migrate.py::test_interrupted_migrations_of_drafts",
    "tests/jobs/migrate/test_migrate.py::test_published_stores_of_v2",
    "tests/jobs/rechunk/test_casting.py"
    "::test_both_data_types_are_counted_and_what_lies_between_is_narrow",
    "tests/jobs/rechunk/test_cluster.py::test_all_to_all_in_workers_of_350_mib",
    "tests/jobs/rechunk/test_cluster.py::test_the_bound_comes_from_the_limit_of_the_workers",
    "tests/jobs/rechunk/test_cluster.py::test_the_scheduler_knows_of_few_tasks_at_a_time",
    "tests/jobs/rechunk/test_cluster.py::test_workers_come_and_go",
    "tests/jobs/rechunk/test_dask_source.py::test_the_same_call_goes_on",
    "tests/jobs/rechunk/test_joint_plan.py::test_pictures_of_many_arrays_stay_small",
    "tests/jobs/rechunk/test_joint_plan.py::test_pictures_of_several_arrays",
    "tests/jobs/rechunk/test_joint_plan.py"
    "::test_work_besides_the_bytes_grows_with_the_number_of_arrays_only",
    "tests/jobs/rechunk/test_planner.py::test_more_memory_never_makes_a_slower_plan_of_slabs",
    "tests/jobs/rechunk/test_planner.py"
    "::test_no_plan_holds_more_than_its_budget_where_objects_are_padded_and_converted",
    "tests/jobs/rechunk/test_planner.py::test_requests_are_those_of_the_plan",
    "tests/jobs/rechunk/test_random_plans.py::test_random_rechunkings_keep_their_plans",
    "tests/jobs/rechunk/test_rechunk.py::test_a_plan_can_be_drawn",
    "tests/jobs/rechunk/test_rechunk.py::test_schedulers_of_dask",
    "tests/jobs/rechunk/test_rechunk.py::test_stages_of_other_layouts",
    "tests/jobs/rechunk/test_rechunk.py::test_workers_keep_within_their_memory",
    "tests/jobs/rechunk/test_report.py::test_chunks_of_any_sizes_and_regions_are_predicted",
    "tests/jobs/rechunk/test_report.py"
    "::test_libraries_that_the_first_task_loads_are_no_memory_of_tasks",
    "tests/jobs/rechunk/test_report.py::test_requests_of_regions_of_shards_are_predicted",
    "tests/jobs/simulation/test_mpi.py",
    "tests/jobs/simulation/test_processes.py",
    "tests/jobs/test_two_stores.py::test_commands_take_both",
    "tests/jobs/test_two_stores.py::test_comparisons_take_both",
    "tests/jobs/test_two_stores.py::test_each_store_has_its_options",
    "tests/jobs/verify/test_unfinished_uploads.py"
    "::test_old_uploads_are_removed_and_young_ones_listed",
    "tests/jobs/verify/test_verify.py::test_memory_of_many_nodes_is_little",
    "tests/jobs/write/test_lost_puts.py"
    "::test_a_put_over_an_older_object_that_is_lost_is_found_by_its_tag",
    "tests/jobs/write/test_plan.py::test_pictures_of_any_shape",
    "tests/jobs/write/test_running.py::test_a_failure_on_a_cluster_is_waited_for",
    "tests/journal/test_claims_refused.py",
    "tests/journal/test_journal.py"
    "::test_a_long_manifest_that_is_replaced_while_it_is_read_is_read_again",
    "tests/journal/test_journal.py::test_a_manifest_that_goes_on_with_holes_is_read_no_further",
    "tests/journal/test_journal.py::test_receipts_are_read_up_to_a_hole",
    "tests/journal/test_node_claims.py::test_a_job_below_what_is_removed_does_not_succeed",
    "tests/journal/test_node_claims.py"
    "::test_a_job_that_ends_between_the_plan_and_the_start_of_another_is_seen",
    "tests/journal/test_node_claims.py"
    "::test_a_removal_that_was_stopped_is_completed_by_the_one_that_stopped_it",
    "tests/journal/test_node_claims.py"
    "::test_an_append_takes_over_what_a_killed_one_has_left_that_can_be_resumed",
    "tests/journal/test_node_claims.py"
    "::test_an_append_takes_over_what_a_process_has_left_that_ran_all_of_another_one",
    "tests/journal/test_node_claims.py"
    "::test_an_array_that_is_made_where_a_job_has_put_nothing_yet_gets_none_of_its_values",
    "tests/journal/test_node_claims.py::test_claims_of_dead_jobs_are_swept",
    "tests/journal/test_node_claims.py::test_nothing_is_made_below_what_a_job_is_replacing",
    "tests/journal/test_node_claims.py::test_of_two_jobs_at_once_the_later_one_has_the_array",
    "tests/journal/test_node_claims.py::test_threads_that_replace_one_array_do_not_mix_values",
    "tests/journal/test_node_claims.py"
    "::test_what_lands_later_than_it_may_is_found_before_the_array_is_visible",
    "tests/journal/test_node_claims.py"
    "::test_what_lands_on_objects_with_receipts_is_found_and_written_anew",
    "tests/journal/test_node_claims.py"
    "::test_what_was_stopped_between_two_batches_of_deletes_leaves_a_later_job_alone",
    "tests/journal/test_node_claims.py"
    "::test_what_was_stopped_while_it_removes_or_copies_leaves_a_later_job_alone",
    "tests/journal/test_seen_folder.py"
    "::test_a_process_that_is_stopped_and_woken_ends_with_an_error",
    "tests/journal/test_stopped_jobs.py",
    "tests/ome/test_append.py::test_stopped_anywhere_and_repeated",
    "tests/ome/test_convert.py"
    "::test_pages_in_one_strip_are_decoded_once_by_as_many_threads_as_have_room",
    "tests/ome/test_convert.py::test_what_has_little_room_besides_a_page_decodes_it_a_few_times",
    "tests/ome/test_convert.py::test_wide_strips_take_the_memory_of_the_plan",
    "tests/ome/test_jobs.py::test_killed",
    "tests/ome/test_jobs.py::test_memory",
    "tests/ome/test_jobs.py::test_on_a_cluster",
    "tests/ome/test_jobs.py::test_schedulers",
    "tests/ome/test_label.py::test_objects_that_touch_at_corners_across_borders",
    "tests/ome/test_label.py::test_objects_that_wind_through_many_blocks",
    "tests/ome/test_label.py::test_what_a_killed_process_has_left_is_named_and_removed",
    "tests/ome/test_later_versions.py::test_it_is_not_written",
    "tests/ome/test_levels.py::test_methods_and_data_types",
    "tests/ome/test_migrate.py::test_a_pyramid_is_sharded_on_the_way",
    "tests/ome/test_migrate.py::test_an_image_is_sharded_in_its_place",
    "tests/ome/test_migrate.py::test_an_interrupted_migration_leaves_a_readable_image",
    "tests/ome/test_migrate.py::test_consolidated_metadata_of_arrays_that_are_written_anew",
    "tests/ome/test_migrate.py::test_from_earlier_versions",
    "tests/ome/test_migrate.py::test_killed_while_old_documents_are_removed",
    "tests/ome/test_migrate.py::test_only_documents_change_in_place",
    "tests/ome/test_migrate.py::test_plates_with_all_their_wells",
    "tests/ome/test_migrate.py::test_there_and_back",
    "tests/ome/test_remote.py",
    "tests/ome/test_stored_image.py::test_importing_the_package_does_not_load_it",
    "tests/ome/test_stored_image.py::test_names_of_natural_calls_are_none_of_modules",
    "tests/ome/test_update.py::test_stopped_before_each_change",
    "tests/ome/test_write.py::test_methods_and_shards",
    "tests/product/interop/",
    "tests/product/test_bindfs.py",
    "tests/product/test_dask_suite.py",
    "tests/product/test_docs.py::test_a_page_runs_from_top_to_bottom",
    "tests/product/test_docs_failure_rows.py::test_a_bucket_can_be_opened",
    "tests/product/test_docs_failures.py",
    "tests/product/test_docs_needs.py",
    "tests/product/test_docs_s3.py",
    "tests/product/test_failing_calls.py::test_a_delete_that_fails_leaves_nothing_locked",
    "tests/product/test_failing_calls.py::test_a_process_killed_at_some_calls",
    "tests/product/test_failing_calls.py::test_a_removal_of_a_group_is_ended_by_the_same_call",
    "tests/product/test_failing_calls.py::test_some_calls_that_fail",
    "tests/product/test_foreign_packages.py",
    "tests/product/test_fuzz.py::test_some_hostile_inputs_for_every_decoder",
    "tests/product/test_hostile.py::test_a_typed_error_within_a_second_and_300_mib",
    "tests/product/test_hostile.py::test_walking_tens_of_thousands_of_broken_nodes_is_refused",
    "tests/product/test_icechunk_branches.py::test_every_function_that_writes",
    "tests/product/test_icechunk_cluster.py",
    "tests/product/test_icechunk_resume.py",
    "tests/product/test_memory.py",
    "tests/product/test_ome_peers.py",
    "tests/product/test_power_cuts.py::test_after_a_power_cut_the_same_call_ends_the_job",
    "tests/product/test_power_cuts.py::test_after_lost_content_the_same_call_ends_the_job",
    "tests/product/test_power_cuts.py::test_after_some_power_cuts_the_same_call_ends_the_job",
    "tests/product/test_power_cuts.py"
    "::test_objects_of_one_call_in_many_folders_survive_a_power_cut",
    "tests/product/test_power_cuts.py::test_what_was_acknowledged_with_fsync_survives_a_power_cut",
    "tests/product/test_project.py::test_workflows_of_hosted_ci_are_valid",
    "tests/product/test_rechunk_kills.py",
    "tests/product/test_rechunk_memory.py",
    "tests/product/test_remote_requests.py",
    "tests/product/test_servers.py",
    "tests/product/test_slurm.py",
    "tests/product/test_typing.py",
    "tests/product/test_write_losses.py::test_nothing_is_lost_on_processes",
    "tests/product/test_write_races.py::test_nothing_is_lost_on_processes",
    "tests/product/test_xarray_suite.py",
    "tests/product/test_xarray_write_suite.py",
    "tests/product/zarr2/",
    "tests/stores/backends/test_fsspec.py"
    "::test_what_is_missing_is_said_in_our_words_where_fsspec_serves",
    "tests/stores/backends/test_obstore_alone.py"
    "::test_only_variables_that_concern_services_make_new_clients",
    "tests/stores/backends/test_obstore_alone.py"
    "::test_s3fs_reads_credentials_again_whenever_they_expire",
    "tests/stores/backends/test_s3.py::test_a_botocore_that_knows_no_conditions_is_noticed",
    "tests/stores/backends/test_s3.py::test_a_gateway_that_wants_tags_without_quotes",
    "tests/stores/backends/test_s3.py::test_a_service_that_knows_quotes_is_not_asked_twice",
    "tests/stores/backends/test_s3.py::test_a_store_in_another_process",
    "tests/stores/backends/test_s3.py::test_a_vanished_server_is_an_error",
    "tests/stores/backends/test_s3.py::test_after_a_fork",
    "tests/stores/backends/test_s3.py::test_two_jobs_share_a_border_object",
    "tests/stores/backends/test_s3.py::test_whoever_has_no_credentials_is_told_how_to_give_them",
    "tests/stores/backends/test_zip.py::test_zip64_and_data_before_the_archive",
    "tests/stores/test_faults.py::test_a_large_value_is_put_in_parts_that_are_tried_again",
    "tests/stores/test_faults.py::test_a_large_value_may_take_longer_than_an_answer",
    "tests/stores/test_faults.py::test_a_load_with_faults",
    "tests/stores/test_faults.py::test_a_server_that_says_nothing_is_an_error_in_bounded_time",
    "tests/stores/test_faults.py::test_reports_count_the_requests_that_were_tried_again",
    "tests/stores/test_hostile_listings.py"
    "::test_a_listing_of_unfinished_uploads_that_lies_is_a_typed_error",
    "tests/stores/test_hostile_listings.py::test_a_listing_that_lies_is_a_typed_error",
    "tests/stores/test_hostile_listings.py"
    "::test_what_a_listing_of_azure_must_not_say_is_a_typed_error",
    "tests/stores/test_hostile_listings.py"
    "::test_what_a_listing_of_google_must_not_say_is_a_typed_error",
    "tests/stores/test_mounts.py::test_a_system_without_calls_relative_to_a_folder",
    "tests/stores/test_mounts.py::test_a_system_without_locks",
    "tests/stores/test_outage.py",
    "tests/stores/test_secrets.py",
    "tests/stores/wrappers/test_cache.py::test_arrays_in_s3_are_read_once",
    "tests/test_layers.py::test_a_copy_on_a_cluster_loads_no_dask_array",
    "tests/test_layers.py::test_light_uses_load_nothing_heavy",
    "tests/xarray/test_find_regions.py::test_region_of_labels_is_what_xarray_selects",
    "tests/xarray/test_kills.py",
    "tests/xarray/test_kills_s3.py",
    "tests/xarray/test_random_datasets.py",
    "tests/xarray/test_swap.py",
    "tests/xarray/test_swap_s3.py::test_a_dataset_is_computed_from_itself",
    "tests/xarray/test_swap_s3.py"
    "::test_a_dataset_that_was_opened_before_gives_no_values_of_another_one",
    "tests/xarray/test_swap_s3.py::test_a_group_of_a_larger_store",
    "tests/xarray/test_swap_s3.py::test_a_group_that_is_shown_in_part_is_not_renamed",
    "tests/xarray/test_swap_s3.py::test_a_job_that_stopped_on_the_way_goes_on",
    "tests/xarray/test_swap_s3.py::test_a_swap_beside_an_append_is_refused",
    "tests/xarray/test_swap_s3.py::test_a_tree_and_an_array",
    "tests/xarray/test_swap_s3.py"
    "::test_a_version_before_the_last_is_not_read_where_the_next_one_is_written",
    "tests/xarray/test_swap_s3.py::test_an_append_that_has_ended_since_a_swap_was_planned_is_seen",
    "tests/xarray/test_swap_s3.py"
    "::test_attributes_that_change_meanwhile_are_those_of_the_new_version",
    "tests/xarray/test_swap_s3.py"
    "::test_consolidated_metadata_that_are_out_of_date_are_brought_up_to_date_first",
    "tests/xarray/test_swap_s3.py::test_objects_of_a_job_that_was_killed_are_none_of_the_next",
    "tests/xarray/test_swap_s3.py::test_of_two_swaps_the_later_one_has_the_dataset",
    "tests/xarray/test_swap_s3.py::test_on_azure",
    "tests/xarray/test_swap_s3.py::test_others_are_kept_away",
    "tests/xarray/test_swap_s3.py::test_others_end_what_is_left_or_are_refused",
    "tests/xarray/test_swap_s3.py::test_the_next_swap_ends_what_is_left",
    "tests/xarray/test_swap_s3.py::test_the_same_call_goes_on",
    "tests/xarray/test_swap_s3.py::test_what_is_left_of_a_group_below_is_ended_first",
    "tests/xarray/test_swap_s3.py"
    "::test_what_is_left_of_a_swap_counts_for_nothing_that_takes_the_place",
    "tests/xarray/test_write.py::test_a_dataset_that_is_visible_stays_so_when_its_job_is_ended",
    "tests/xarray/test_write.py::test_a_reader_beside_appends_of_its_process_sees_all_of_them_or_none",
    "tests/xarray/test_write.py::test_a_reader_sees_no_half_of_an_append_that_is_shown",
    "tests/xarray/test_write.py::test_append_killed_while_it_is_shown_ends_by_itself",
    "tests/xarray/test_write.py::test_datasets_have_the_accessor_once_both_packages_are_imported",
    "tests/xarray/test_write.py::test_other_formats_mean_the_same_to_xarray",
    "tests/xarray/test_write.py::test_rechunked_group_means_the_same_to_xarray",
    "tests/xarray/test_write.py::test_what_replaces_an_array_grows_by_no_append_that_died_in_its_group",
    "tests/xarray/test_write.py::test_what_says_that_an_append_is_shown_was_tampered_with",
    "tests/xarray/test_xarray.py::test_small_objects_are_merged_alike_in_all_variables",
)

# Worker processes are forked from one that has imported what they need: started one by one, they
# would take a third of the time of all tests. (The environment that they see is that of the first.)
FORKED = "forkserver"
IMPORTED = [
    "tests.support.kill_roles",
    "distributed.nanny",
    "zarr_dask.jobs.write.write",
    "zarr_dask.jobs.rechunk.rechunk",
    "zarr_dask.graph.tokens",
]
multiprocessing.set_forkserver_preload(IMPORTED)
dask.config.set({"multiprocessing.context": FORKED})

# No deadline: the machines that run this share their cores, and the timeout of a whole test holds.
settings.register_profile("fast", max_examples=25, deadline=None, print_blob=True)
settings.register_profile("ci", max_examples=50, deadline=None, print_blob=True, database=None)
settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "fast"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """Begin with what takes long, so that the processes end together."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LongFirst(LoadFileScheduling):
        def _assign_work_unit(self, node: object) -> None:
            longest = next((scope for scope in LONG if scope in self.workqueue), None)
            if longest is not None:
                self.workqueue.move_to_end(longest, last=False)
            super()._assign_work_unit(node)

    return LongFirst(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the garbage collector what stays until the end: the modules and the tests."""
    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # not disabled: dask keeps whether it is from when it is imported
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*thresholds)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which no test is wanted."""
    name = collection_path.relative_to(Path(__file__).parent.parent).as_posix()
    left_out = "not ci" in config.option.markexpr and name.startswith(IN_CI_ONLY)
    return True if left_out else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what starts worker processes, and what only CI runs."""
    if item.nodeid.startswith(IN_CI_ONLY):
        item.add_marker("ci")
    if {"make_cluster", "cluster", "client"} & set(getattr(item, "fixturenames", ())):
        item.add_marker("cluster")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once what has failed: a run that is cut off prints no summary."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        print(f"\nFAILED {report.nodeid} ({report.when}): {crash or ''}", flush=True)


def pytest_configure(config: pytest.Config) -> None:
    """Marks of xarray's own tests, which tests/product/test_xarray_suite.py runs."""
    for mark in ("asyncio", "flaky", "network", "skip_if_param", "skip_with_dask_array"):
        config.addinivalue_line("markers", f"{mark}: see xarray's own tests")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests that are coroutines, which xarray has."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks():
    """Metadata are synced to the disk, for which thousands of tests would wait for minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def public_data() -> Path:
    """Stores written by other projects, to be read only. Where they must be, their lack fails."""
    from tests.support.paths import ROOT  # not before its asserts are rewritten

    path = Path(os.environ.get("ZARR_DASK_PUBLIC_DATA", ROOT.parent / "shared" / "public-data"))
    if not path.is_dir():
        reason = f"no directory {path}: set ZARR_DASK_PUBLIC_DATA"
        (pytest.fail if IN_CI else pytest.skip)(reason)
    return path


@pytest.fixture(scope="module")
def make_cluster() -> Iterator[Callable[..., LocalCluster]]:
    """Make ``make_cluster(n_workers=2, **options)``: clusters that live as long as the module."""
    from distributed import LocalCluster
    from distributed.utils import get_mp_context

    with ExitStack() as stack:

        def make(n_workers: int = 2, **options: object) -> LocalCluster:
            # The scheduler serves HTTP even without a dashboard: not on the port everyone uses.
            no_dashboard = {
                "dashboard_address": "127.0.0.1:0",
                "scheduler_kwargs": {"dashboard": False},
            }
            wanted = {"threads_per_worker": 1, "processes": True, **no_dashboard, **options}
            settings = {
                "distributed.worker.multiprocessing-method": FORKED,
                "distributed.worker.profile.enabled": False,  # it grows while memory is measured
            }
            with dask.config.set(settings):
                get_mp_context()  # which sets a list of its own, the first time
                multiprocessing.set_forkserver_preload(IMPORTED)
                return stack.enter_context(LocalCluster(n_workers=n_workers, **wanted))

        yield make


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """Two worker processes of one thread each."""
    return make_cluster()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """Connect to `cluster`; this test's default scheduler, and no other test's."""
    from distributed import Client

    with Client(cluster) as client:
        yield client


@pytest.fixture
def repository(tmp_path: Path) -> icechunk.Repository:
    """Make a repository of Icechunk, the folder ``repo`` of `tmp_path`."""
    found = pytest.importorskip("icechunk")
    found.set_logs_filter("error")
    return found.Repository.create(found.local_filesystem_storage(str(tmp_path / "repo")))
