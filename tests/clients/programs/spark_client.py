"""Spark on S3A: each of its committers, renames by the driver, appends, a streaming checkpoint."""

import os
import sys

from arguments import main
from pyspark.sql import SparkSession


def work(bucket, token):
    hadoop = "3.3.4"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    cloud = "org.apache.spark:spark-hadoop-cloud_2.12:3.5.7"
    s3a = "spark.hadoop.fs.s3a."
    builder = SparkSession.builder.config("spark.jars.packages", f"org.apache.hadoop:hadoop-aws:{hadoop},{cloud}")
    for name, value in {
        f"{s3a}endpoint": os.environ["AWS_ENDPOINT_URL"],
        f"{s3a}endpoint.region": os.environ["AWS_REGION"],
        f"{s3a}access.key": os.environ["AWS_ACCESS_KEY_ID"],
        f"{s3a}secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
        f"{s3a}path.style.access": "true",
        "spark.ui.enabled": "false",
        "spark.jars.ivy": os.path.expanduser("~/.ivy2"),
        "spark.driver.memory": "2g",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.range(200_000).selectExpr("id", "id % 5 AS p")
    for committer in ("file", "directory", "magic"):
        url = f"s3a://{bucket}/{token}/{committer}"
        writer = frame.write.option("fs.s3a.committer.name", committer)
        if committer != "file":
            spark.conf.set(
                "spark.sql.sources.commitProtocolClass", "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol"
            )
            spark.conf.set(
                "spark.sql.parquet.output.committer.class",
                "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
            )
            spark.conf.set("spark.hadoop.mapreduce.outputcommitter.factory.scheme.s3a",
                           "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory")  # fmt: skip
            spark.conf.set("spark.hadoop.fs.s3a.committer.magic.enabled", "true")
        writer.mode("overwrite").parquet(url)
        assert spark.read.parquet(url).count() == 200_000, committer
        frame.write.option("fs.s3a.committer.name", committer).mode("append").parquet(url)
        assert spark.read.parquet(url).where("p = 1").count() == 80_000, committer
        path = spark._jvm.org.apache.hadoop.fs.Path(url)
        fs = path.getFileSystem(spark._jsc.hadoopConfiguration())
        moved = spark._jvm.org.apache.hadoop.fs.Path(f"{url}-moved")
        assert fs.rename(path, moved) and not fs.exists(path)
        assert spark.read.parquet(f"{url}-moved").count() == 400_000, committer
        assert fs.delete(moved, True) and not fs.exists(moved)
    spark.stop()


main(globals())
