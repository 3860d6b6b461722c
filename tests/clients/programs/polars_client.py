"""Polars: eager and lazy, one file and many, by its own object store."""

import polars as pl
from arguments import main


def work(bucket, token):
    frame = pl.DataFrame({"n": range(500_000), "p": [number % 4 for number in range(500_000)]})
    one = f"s3://{bucket}/{token}/one.parquet"
    frame.write_parquet(one)
    assert pl.read_parquet(one).equals(frame)
    assert pl.scan_parquet(one).filter(pl.col("p") == 1).select(pl.len()).collect().item() == 125_000
    for number in range(3):
        frame.write_parquet(f"s3://{bucket}/{token}/many/{number}.parquet")
    assert pl.scan_parquet(f"s3://{bucket}/{token}/many/*.parquet").select(pl.len()).collect().item() == 1_500_000
    frame.lazy().sink_parquet(f"s3://{bucket}/{token}/sunk.parquet")
    assert (
        pl.scan_parquet(f"s3://{bucket}/{token}/sunk.parquet").select(pl.col("n").sum()).collect().item()
        == frame["n"].sum()
    )
    frame.write_csv(f"s3://{bucket}/{token}/one.csv")
    assert pl.scan_csv(f"s3://{bucket}/{token}/one.csv").select(pl.len()).collect().item() == 500_000


main(globals())
