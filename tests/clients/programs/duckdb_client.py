"""DuckDB with httpfs: COPY to Parquet and CSV, globs, partitions."""

import os
from pathlib import Path

import duckdb
import duckdb_extension_httpfs
from arguments import main


def work(bucket, token):
    db = duckdb.connect()
    extension = next(Path(duckdb_extension_httpfs.__file__).parent.rglob("*.duckdb_extension"))
    db.execute(f"LOAD '{extension}'")
    host = os.environ["AWS_ENDPOINT_URL"].split("//")[1]
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    db.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET '{secret}',"
        f" REGION '{os.environ['AWS_REGION']}', ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false)"
    )
    db.execute("CREATE TABLE t AS SELECT i AS n, i % 4 AS p, md5(i::text) AS h FROM range(2000000) r(i)")
    db.execute(f"COPY t TO 's3://{bucket}/{token}/one.parquet'")
    count = lambda source: db.execute(f"SELECT count(*), sum(n) FROM {source}").fetchone()
    assert count(f"'s3://{bucket}/{token}/one.parquet'") == count("t")
    db.execute(f"COPY t TO 's3://{bucket}/{token}/parts' (FORMAT parquet, PARTITION_BY (p))")
    assert count(f"read_parquet('s3://{bucket}/{token}/parts/*/*.parquet')") == count("t")
    db.execute(f"COPY (SELECT * FROM t LIMIT 1000) TO 's3://{bucket}/{token}/small.csv'")
    assert count(f"'s3://{bucket}/{token}/small.csv'")[0] == 1000
    assert len(db.execute(f"SELECT * FROM glob('s3://{bucket}/{token}/parts/**')").fetchall()) >= 4


main(globals())
