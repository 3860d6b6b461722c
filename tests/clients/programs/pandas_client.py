"""pandas: CSV, Parquet and pickled frames, written and read by URL."""

import pandas as pd
from arguments import main


def work(bucket, token):
    frame = pd.DataFrame({"n": range(200_000), "t": ["some text"] * 200_000})
    for name, write, read in (
        ("csv", lambda url: frame.to_csv(url, index=False), pd.read_csv),
        ("parquet", frame.to_parquet, pd.read_parquet),
        ("json", lambda url: frame.to_json(url, orient="records"), lambda url: pd.read_json(url, orient="records")),
    ):
        url = f"s3://{bucket}/{token}/frame.{name}"
        write(url)
        assert read(url).equals(frame), name
    frame.assign(p=frame.n % 2).to_parquet(f"s3://{bucket}/{token}/parts", partition_cols=["p"])
    assert len(pd.read_parquet(f"s3://{bucket}/{token}/parts")) == 200_000


main(globals())
