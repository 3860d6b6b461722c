"""PyIceberg with a catalog in SQLite and its default file access."""

import os
import tempfile

import pyarrow as pa
from arguments import main
from pyiceberg.catalog.sql import SqlCatalog


def work(bucket, token):
    with tempfile.TemporaryDirectory() as folder:
        catalog = SqlCatalog(
            "c",
            uri=f"sqlite:///{folder}/catalog.db",
            warehouse=f"s3://{bucket}/{token}",
            **{
                "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
                "s3.region": os.environ["AWS_REGION"],
                "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
                "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
            },
        )
        catalog.create_namespace("n")
        rows = pa.table({"n": pa.array(range(100_000)), "t": ["x"] * 100_000})
        table = catalog.create_table("n.t", schema=rows.schema)
        table.append(rows)
        table.append(rows)
        assert table.scan().to_arrow().num_rows == 200_000
        table.overwrite(rows)
        assert table.scan(row_filter="n < 10").to_arrow().num_rows == 10
        catalog.purge_table("n.t") if hasattr(catalog, "purge_table") else catalog.drop_table("n.t")


main(globals())
