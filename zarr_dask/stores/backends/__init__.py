"""Stores of bytes: local files, memory, archives, HTTP and object stores.

=================  =============================================================================
this machine       `local`, `posix_io`, `memory`
archives           `zip`, `zip_format`, `zip_writer`
HTTP               `http`, `http_ranges`
S3, Google, Azure  `obstore`, `obstore_requests`
fsspec             `fsspec`, `fsspec_file_system`, `fsspec_open_file`, `fsspec_retries`,
                   `fsspec_services`
its services       `fsspec_s3`, `fsspec_google`, `fsspec_azure`
references         `json_references`, `parquet_references`, `lazy_references`, `reference_reads`
their places       `reference_targets`, `reference_templates`
other libraries    `icechunk_urls`, `icechunk_session`, `zarr_python`, `tiff`
=================  =============================================================================
"""
