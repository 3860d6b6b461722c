"""PyArrow's own S3 file system, and datasets on it."""

import os
import sys

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from arguments import main
from pyarrow import fs

s3 = fs.S3FileSystem(
    endpoint_override=os.environ["AWS_ENDPOINT_URL"].split("//")[1], scheme="http", allow_bucket_creation=True
)


def create(bucket):
    s3.create_dir(bucket)


def put(bucket, key, file):
    with open(file, "rb") as read, s3.open_output_stream(f"{bucket}/{key}") as out:
        while chunk := read.read(1 << 20):
            out.write(chunk)


def put_unknown(bucket, key):
    with s3.open_output_stream(f"{bucket}/{key}") as out:
        while chunk := sys.stdin.buffer.read(1 << 20):
            out.write(chunk)


def get(bucket, key, file):
    with open(file, "wb") as out, s3.open_input_stream(f"{bucket}/{key}") as read:
        while chunk := read.read(1 << 20):
            out.write(chunk)


def range(bucket, key, file, first, last):
    with open(file, "wb") as out, s3.open_input_file(f"{bucket}/{key}") as read:
        out.write(read.read_at(int(last) - int(first) + 1, int(first)))


def list(bucket, prefix):
    for found in s3.get_file_info(fs.FileSelector(f"{bucket}/{prefix}", recursive=True)):
        print(found.path)


def copy(bucket, key, other):
    s3.copy_file(f"{bucket}/{key}", f"{bucket}/{other}")


def move(bucket, key, other):
    s3.move(f"{bucket}/{key}", f"{bucket}/{other}")


def delete(bucket, key):
    s3.delete_file(f"{bucket}/{key}")


def delete_tree(bucket, prefix):
    s3.delete_dir(f"{bucket}/{prefix}")


def work(bucket, token):
    table = pa.table(
        {"n": pa.array(__builtins__.range(300_000)), "p": [number % 3 for number in __builtins__.range(300_000)]}
    )
    pq.write_table(table, f"{bucket}/{token}.parquet", filesystem=s3)
    assert pq.read_table(f"{bucket}/{token}.parquet", filesystem=s3) == table
    ds.write_dataset(table, f"{bucket}/{token}", format="parquet", partitioning=["p"], filesystem=s3)
    found = ds.dataset(f"{bucket}/{token}", format="parquet", partitioning=["p"], filesystem=s3)
    assert found.count_rows() == 300_000
    assert found.to_table(filter=ds.field("p") == 1).num_rows == 100_000


main(globals())
