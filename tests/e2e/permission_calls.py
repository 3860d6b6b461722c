"""Which operations of the permission matrix try each call of the gateway.

The gateway lists its calls on the page of metrics: it has a series of each from the start. So a new call without an
operation fails a test.
"""

# Calls of both interfaces, by the names that they have in metrics.
TRIED_BY: dict[str, tuple[str, ...]] = {
    "abort_multipart_upload": ("go on with an upload of one's own", "go on with an upload of another's"),
    "complete_multipart_upload": ("put a new object", "overwrite an object"),
    "copy_object": (
        "put a new object",
        "overwrite an object",
        "read an object",
        "read the key of a directory",
        "put the key of a directory that is there",
        "put the key of a directory on a condition",
    ),
    "create_multipart_upload": ("put a new object",),
    "delete_bucket": ("remove a namespace",),
    "delete_bucket_tagging": ("change metadata of the root of a namespace",),
    "delete_namespace": ("remove a namespace",),
    "delete_object": ("delete an object", "remove an empty directory", "make a directory implicit"),
    "delete_object_tagging": ("change tags",),
    "delete_objects": ("delete an object", "remove an empty directory"),
    "get_bucket_location": ("find a bucket",),
    "get_bucket_tagging": ("read the tags of a bucket",),
    "get_bucket_versioning": ("find a bucket",),
    "get_object": ("read an object", "read the key of a directory"),
    "get_object_attributes": ("read an object",),
    "get_object_tagging": ("read an object",),
    "head_bucket": ("find a bucket",),
    "head_object": ("read an object", "read the key of a directory"),
    "list": ("list", "list the root of a namespace"),
    "list_multipart_uploads": ("list the root of a namespace",),
    "list_object_versions": ("list", "list everything below", "list the root of a namespace"),
    "list_objects": ("list", "list everything below", "list the root of a namespace"),
    "list_objects_v2": ("list", "list everything below", "list the root of a namespace"),
    "list_parts": ("go on with an upload of one's own", "go on with an upload of another's"),
    "mkdir": ("make a directory",),
    "put_bucket_tagging": ("change metadata of the root of a namespace",),
    "put_object": (
        "put a new object",
        "overwrite an object",
        "make a directory",
        "put the key of a directory that is there",
        "put the key of a directory on a condition",
    ),
    "put_object_tagging": ("change tags",),
    "remove_tree": ("remove a directory with everything below",),
    "rename": ("rename an object away", "move a directory to another parent"),
    "rename_object": ("rename an object away", "rename a directory in its parent"),
    "rmdir": ("remove an empty directory",),
    "set_attributes": ("change the mode", "change the mode of the root of a namespace"),
    "set_umask": ("change the umask of a namespace",),
    "stat": ("stat", "stat the root of a namespace", "read an object"),
    "stat_many": ("stat", "stat the root of a namespace"),
    "upload_part": ("go on with an upload of one's own", "go on with an upload of another's"),
    "upload_part_copy": ("go on with an upload of one's own", "read an object"),
    "usage": ("totals of a directory", "totals of a namespace"),
}
# No directory decides who may make these: tests/e2e/test_permissions.py::test_what_no_directory_decides.
NOT_OF_DIRECTORIES = {
    "create_bucket",
    "create_namespace",
    "list_buckets",
    "list_namespaces",
    "migrate",
    "migration",
    "operation",
}
# What metrics count besides: calls that are answered before any operation is known, or that are not offered.
NO_CALLS = {"not_offered", "probe", "unset", "unrouted"}
