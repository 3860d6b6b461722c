"""Several principals: a gateway beside that of the stack, with credentials of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import botocore.exceptions

from stack.stack import Stack
from tests.support.rest import Rest

from .another_gateway import LimitedGateway, running
from .clients import s3_client

OFFSET = 46
# Uid and groups of each.
PRINCIPALS = {"alice": (1001, (1001, 50)), "bob": (1002, (1002, 50)), "carol": (1003, (1003,)), "root": (0, (0,))}


class SharedGateway(LimitedGateway):
    """A gateway that knows these principals."""

    def prepare(self) -> None:
        super().prepare()
        credentials = "".join(
            f'[[credential]]\naccess_key = "AK{name}"\nsecret_key = "SK{name}"\ntoken = "T{name}"\nuid = {uid}\n'
            f"gids = {list(gids)}\n"
            for name, (uid, gids) in PRINCIPALS.items()
        )
        self.account.write(self.credentials, credentials)

    def rest(self, name: str) -> Rest:
        return Rest(self.host.address, self.port, f"T{name}")

    def s3_of(self, stack: Stack, name: str):
        keys = {"aws_access_key_id": f"AK{name}", "aws_secret_access_key": f"SK{name}"}
        return s3_client(stack, endpoint_url=self.url, **keys)


@contextmanager
def shared_gateway(stack: Stack) -> Iterator[SharedGateway]:
    gateway = SharedGateway(stack.layout, stack.account, "gateway-shared", port=stack.layout.port_base + OFFSET)
    gateway.credentials = stack.layout.config / "gateway-shared-credentials.toml"
    with running(gateway):
        yield gateway


def chmod(client: Rest, ns: str, path: str, mode: str) -> None:
    answer = client.call("PATCH", f"/v1/ns/{ns}/entries/{path}", {"mode": mode})
    assert answer.status == 200, answer


def entry(client: Rest, ns: str, path: str) -> dict:
    answer = client.call("GET", f"/v1/ns/{ns}/entries/{path}")
    assert answer.status == 200, answer
    return answer.body


def refusal(call, *arguments, **given) -> tuple[int, str, str] | None:
    """Status, code and message of an S3 error, or None."""
    try:
        call(*arguments, **given)
    except botocore.exceptions.ClientError as error:
        answer = error.response
        return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"], answer["Error"].get("Message", "")
    return None


def refused(call, *arguments, **given) -> str | None:
    """The code of an S3 error, or None."""
    error = refusal(call, *arguments, **given)
    return None if error is None else error[1]
