"""Tags of objects, directories and buckets."""

from tests.support.s3_wire import code

from .uploads import begin, complete, put, refused

TAGS = [{"Key": "project x", "Value": "a/b=c"}, {"Key": "empty", "Value": ""}]


def tags_of(s3, bucket: str, key: str) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in s3.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]}


def test_an_object_has_the_tags_that_were_set_last(s3, bucket):
    place = {"Bucket": bucket, "Key": "k"}
    s3.put_object(**place, Body=b"1", Metadata={"a": "1"}, CacheControl="no-store", Tagging="colour=blue&size=7")
    assert tags_of(s3, bucket, "k") == {"colour": "blue", "size": "7"}
    before = s3.get_object(**place)
    assert before["TagCount"] == 2
    assert s3.head_object(**place)["ResponseMetadata"]["HTTPHeaders"]["x-amz-tagging-count"] == "2"
    s3.put_object_tagging(**place, Tagging={"TagSet": TAGS})
    after = s3.get_object(**place)
    assert tags_of(s3, bucket, "k") == {"project x": "a/b=c", "empty": ""}
    for name in ("ETag", "LastModified", "Metadata", "CacheControl"):
        assert after[name] == before[name], name
    s3.delete_object_tagging(**place)
    assert tags_of(s3, bucket, "k") == {} and "TagCount" not in s3.get_object(**place)
    assert s3.head_object(**place)["Metadata"] == {"a": "1"}
    s3.delete_object_tagging(**place)
    s3.put_object_tagging(**place, Tagging={"TagSet": TAGS})
    s3.put_object(**place, Body=b"2")
    assert tags_of(s3, bucket, "k") == {}, "an overwritten object has none"


def test_a_copy_has_its_sources_tags_or_its_own(s3, bucket):
    source = {"Bucket": bucket, "Key": "s"}
    s3.put_object(**source, Body=b"1", Tagging="a=1", Metadata={"m": "1"})
    s3.copy_object(Bucket=bucket, Key="kept", CopySource=source)
    s3.copy_object(Bucket=bucket, Key="kept too", CopySource=source, MetadataDirective="REPLACE")
    assert tags_of(s3, bucket, "kept") == tags_of(s3, bucket, "kept too") == {"a": "1"}
    s3.copy_object(Bucket=bucket, Key="own", CopySource=source, TaggingDirective="REPLACE", Tagging="b=2")
    assert tags_of(s3, bucket, "own") == {"b": "2"}
    assert s3.head_object(Bucket=bucket, Key="own")["Metadata"] == {"m": "1"}
    s3.copy_object(Bucket=bucket, Key="none", CopySource=source, TaggingDirective="REPLACE")
    assert tags_of(s3, bucket, "none") == {}


def test_an_upload_brings_tags(s3, bucket):
    upload = begin(s3, bucket, "k", Tagging="a=1")
    complete(s3, upload, put(s3, upload, [b"1"]))
    assert tags_of(s3, bucket, "k") == {"a": "1"}


def test_a_directory_may_have_tags(s3, bucket):
    s3.put_object(Bucket=bucket, Key="d/", Tagging="a=1", Metadata={"m": "1"})
    assert tags_of(s3, bucket, "d/") == {"a": "1"}
    s3.put_object(Bucket=bucket, Key="d/", Metadata={"m": "2"})
    assert tags_of(s3, bucket, "d/") == {}
    s3.put_object_tagging(Bucket=bucket, Key="d/", Tagging={"TagSet": TAGS})
    assert s3.head_object(Bucket=bucket, Key="d/")["Metadata"] == {"m": "2"}


def test_a_bucket_may_have_tags(s3, bucket, rest):
    assert refused(s3.get_bucket_tagging, Bucket=bucket) == ("NoSuchTagSet", 404)
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": TAGS})
    assert s3.get_bucket_tagging(Bucket=bucket)["TagSet"] == sorted(TAGS, key=lambda tag: tag["Key"])
    s3.delete_bucket_tagging(Bucket=bucket)
    assert refused(s3.get_bucket_tagging, Bucket=bucket) == ("NoSuchTagSet", 404)
    assert refused(s3.put_bucket_tagging, Bucket=f"{bucket}-none", Tagging={"TagSet": TAGS}) == ("NoSuchBucket", 404)


def test_what_is_refused_changes_nothing(s3, bucket, wire):
    place = {"Bucket": bucket, "Key": "k"}
    s3.put_object(**place, Body=b"1", Tagging="a=1")
    many = [{"Key": f"k{number}", "Value": ""} for number in range(11)]
    for tags, error in (
        (many, "BadRequest"),
        ([{"Key": "a" * 129, "Value": ""}], "InvalidTag"),
        ([{"Key": "a", "Value": "v" * 257}], "InvalidTag"),
        ([{"Key": "a", "Value": ""}, {"Key": "a", "Value": ""}], "InvalidTag"),
    ):
        assert refused(s3.put_object_tagging, **place, Tagging={"TagSet": tags}) == (error, 400), tags
    assert refused(s3.put_object, **place, Body=b"2", Tagging="a=1&a=2") == ("InvalidArgument", 400)
    assert refused(s3.put_object_tagging, Bucket=bucket, Key="none", Tagging={"TagSet": TAGS}) == ("NoSuchKey", 404)
    assert code(wire.call("PUT", f"/{bucket}/k?tagging", b"<Tagging><New/></Tagging>")) == "MalformedXML"
    assert tags_of(s3, bucket, "k") == {"a": "1"} and s3.get_object(**place)["Body"].read() == b"1"
