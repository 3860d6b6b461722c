"""boto3 with its defaults."""

import sys

import boto3
from arguments import main

s3 = boto3.client("s3")


def create(bucket):
    s3.create_bucket(Bucket=bucket)


def put(bucket, key, file):
    s3.upload_file(file, bucket, key)


def put_unknown(bucket, key):
    s3.upload_fileobj(sys.stdin.buffer, bucket, key)


def get(bucket, key, file):
    s3.download_file(bucket, key, file)


def range(bucket, key, file, first, last):
    with open(file, "wb") as out:
        out.write(s3.get_object(Bucket=bucket, Key=key, Range=f"bytes={first}-{last}")["Body"].read())


def list(bucket, prefix):
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for found in page["Contents"]:
            print(found["Key"])


def copy(bucket, key, other):
    s3.copy({"Bucket": bucket, "Key": key}, bucket, other)


def move(bucket, key, other):
    copy(bucket, key, other)
    delete(bucket, key)


def delete(bucket, key):
    s3.delete_object(Bucket=bucket, Key=key)


def delete_tree(bucket, prefix):
    boto3.resource("s3").Bucket(bucket).objects.filter(Prefix=prefix).delete()


def put_metadata(bucket, key, file):
    s3.upload_file(file, bucket, key, ExtraArgs={"Metadata": {"colour": "blue"}})


def presign(bucket, key):
    signer = boto3.client("s3", config=boto3.session.Config(signature_version="s3v4"))
    print(signer.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}))


main(globals())
