"""s3fs, the file system of fsspec."""

import sys

import s3fs
from arguments import main

fs = s3fs.S3FileSystem()


def create(bucket):
    fs.mkdir(bucket)


def put(bucket, key, file):
    fs.put_file(file, f"{bucket}/{key}")


def put_unknown(bucket, key):
    with fs.open(f"{bucket}/{key}", "wb") as out:
        while chunk := sys.stdin.buffer.read(1 << 20):
            out.write(chunk)


def get(bucket, key, file):
    fs.get_file(f"{bucket}/{key}", file)


def range(bucket, key, file, first, last):
    with open(file, "wb") as out:
        out.write(fs.cat_file(f"{bucket}/{key}", start=int(first), end=int(last) + 1))


def list(bucket, prefix):
    print("\n".join(fs.find(f"{bucket}/{prefix}")))


def copy(bucket, key, other):
    fs.copy(f"{bucket}/{key}", f"{bucket}/{other}")


def move(bucket, key, other):
    fs.mv(f"{bucket}/{key}", f"{bucket}/{other}")
    assert not fs.exists(f"{bucket}/{key}") and fs.exists(f"{bucket}/{other}")


def delete(bucket, key):
    fs.rm_file(f"{bucket}/{key}")


def delete_tree(bucket, prefix):
    fs.rm(f"{bucket}/{prefix}", recursive=True)
    fs.invalidate_cache()
    assert not fs.exists(f"{bucket}/{prefix}")


def put_metadata(bucket, key, file):
    with fs.open(f"{bucket}/{key}", "wb", Metadata={"colour": "blue"}) as out, open(file, "rb") as read:
        out.write(read.read())
    assert fs.metadata(f"{bucket}/{key}", refresh=True)["colour"] == "blue"
    fs.touch(f"{bucket}/touched")


def presign(bucket, key):
    print(fs.url(f"{bucket}/{key}"))


main(globals())
