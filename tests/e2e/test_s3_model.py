"""Random operations over two gateways, against a plain model (tests/support/s3_model.py)."""

from tests.support import s3_model

from .another_gateway import another_gateway


def test_random_operations_against_a_model(stack, s3, bucket):
    with another_gateway(stack) as second:
        s3_model.play([s3, second.s3(stack)], bucket)
