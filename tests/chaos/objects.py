"""Objects over S3 for the workloads' clients: boto3, with the idempotency key that Mantle takes from a header."""

import hashlib

import botocore.exceptions

from tests.support.rest import Answer

PASSING = ("ServiceUnavailable", "SlowDown", "RequestTimeout", "OperationAborted")
VERBS = ("put", "get", "delete", "delete_if_match", "copy", "rename_object", "upload", "list_objects")


class Objects:
    """Makes one call and returns an answer like the native API's."""

    def __init__(self, s3):
        self.s3 = s3
        # By request: what an upload has got so far. A call that is repeated goes on from there.
        self._uploads: dict[str, dict] = {}

    def __call__(self, verb: str, bucket: str, key: str, to: str, content: str, request_id: str) -> Answer:
        """`to`: the key that `copy` and `rename_object` make. `content`: of what is put, or of the object that
        `delete_if_match` may remove.
        """

        def add_key(request, **_ignored) -> None:
            request.headers["Idempotency-Key"] = request_id

        event = "before-sign.s3"
        place = {"Bucket": bucket, "Key": key}
        try:
            if verb == "upload":
                return self._upload(place, content, request_id)
            self.s3.meta.events.register(event, add_key, unique_id="idempotency")
            return self._call(verb, place, to, content, request_id)
        except botocore.exceptions.ClientError as error:
            status, code = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
            return Answer(503 if code in PASSING else status, {"code": code})
        except (botocore.exceptions.BotoCoreError, OSError):
            return Answer(0)
        finally:
            self.s3.meta.events.unregister(event, unique_id="idempotency")

    def _call(self, verb: str, place: dict, to: str, content: str, request_id: str) -> Answer:
        match verb:
            case "put":
                self.s3.put_object(**place, Body=content.encode())
            case "get":
                body = self.s3.get_object(**place)["Body"].read()
                return Answer(200, {"content": body.decode()})
            case "delete_if_match":
                self.s3.delete_object(**place, IfMatch=f'"{hashlib.md5(content.encode()).hexdigest()}"')
            case "copy":
                self.s3.copy_object(Bucket=place["Bucket"], Key=to, CopySource=place)
            case "rename_object":
                source = f"/{place['Bucket']}/{place['Key']}"
                self.s3.rename_object(Bucket=place["Bucket"], Key=to, RenameSource=source, ClientToken=request_id)
            case "list_objects":
                page = self.s3.list_objects_v2(Bucket=place["Bucket"], Prefix=place["Key"], Delimiter="/")
                found = [entry["Key"] for entry in page.get("Contents", [])]
                found += [prefix["Prefix"] for prefix in page.get("CommonPrefixes", [])]
                names = (key.removeprefix(place["Key"]).rstrip("/") for key in found)
                return Answer(200, {"entries": [{"name": name} for name in names if name]})
            case _:
                self.s3.delete_object(**place)
        return Answer(200)

    def _upload(self, place: dict, content: str, request_id: str) -> Answer:
        """In one part. Parts may be put again; completing again answers the same."""
        state = self._uploads.setdefault(request_id, {})
        if "id" not in state:
            state["id"] = self.s3.create_multipart_upload(**place)["UploadId"]
        place = {**place, "UploadId": state["id"]}
        if "etag" not in state:
            state["etag"] = self.s3.upload_part(**place, PartNumber=1, Body=content.encode())["ETag"]
        chosen = {"Parts": [{"PartNumber": 1, "ETag": state["etag"]}]}
        self.s3.complete_multipart_upload(**place, MultipartUpload=chosen)
        del self._uploads[request_id]
        return Answer(200)
