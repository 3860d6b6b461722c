"""Objects over S3 for the workloads' clients: boto3, with the idempotency key that Mantle takes from a header."""

import botocore.exceptions

from tests.support.rest import Answer

PASSING = ("ServiceUnavailable", "SlowDown", "RequestTimeout")


def caller(s3):
    """A function that makes one call and returns an answer like the native API's."""

    def call(verb: str, bucket: str, key: str, content: str, request_id: str) -> Answer:
        def add_key(request, **_ignored) -> None:
            request.headers["Idempotency-Key"] = request_id

        event = "before-sign.s3"
        s3.meta.events.register(event, add_key, unique_id="idempotency")
        try:
            match verb:
                case "put":
                    s3.put_object(Bucket=bucket, Key=key, Body=content.encode())
                    return Answer(200)
                case "get":
                    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
                    return Answer(200, {"content": body.decode()})
            s3.delete_object(Bucket=bucket, Key=key)
            return Answer(204)
        except botocore.exceptions.ClientError as error:
            status, code = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
            return Answer(503 if code in PASSING else status, {"code": code})
        except (botocore.exceptions.BotoCoreError, OSError):
            return Answer(0)
        finally:
            s3.meta.events.unregister(event, unique_id="idempotency")

    return call
