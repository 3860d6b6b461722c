"""delta-rs: commits by conditional puts, with no lock table."""

import os

import pyarrow as pa
from arguments import main
from deltalake import DeltaTable, write_deltalake


def work(bucket, token):
    url, options = f"s3://{bucket}/{token}/table", {"allow_http": "true"}
    rows = pa.table({"n": pa.array(range(100_000)), "p": [number % 3 for number in range(100_000)]})
    for _ in range(5):
        write_deltalake(url, rows, mode="append", partition_by=["p"], storage_options=options)
    table = DeltaTable(url, storage_options=options)
    assert table.to_pyarrow_table().num_rows == 500_000
    table.delete("p = 1")
    table.optimize.compact()
    table.create_checkpoint()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert DeltaTable(url, storage_options=options).to_pyarrow_table().num_rows == 500_000 - 5 * 33_333

    # With this pyarrow the interpreter aborts at its exit, after the work.
    os._exit(0)


main(globals())
