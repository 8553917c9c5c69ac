"""What a Python program would put around its tool calls instead.

First prints what it runs on. Then reads lines `<what> <count>` and answers each with the nanoseconds that this many
calls took, so that the program that asks can let everybody take turns. Its first argument is the tool's parameters.
"""

import json
import os
import platform
import sys
import time
import warnings
from importlib.metadata import version

os.environ.setdefault("POWERTOOLS_SERVICE_NAME", "bench")
# Outside of Lambda it does not know the time limit of a call, and warns at every call.
warnings.simplefilter("ignore")

import pybreaker
import tenacity
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

ANSWER = {"content": [{"type": "text", "text": "42 entries were updated"}]}


class InMemory(BasePersistenceLayer):
    """The cheapest store there can be."""

    def __init__(self):
        super().__init__()
        self.records = {}

    def _get_record(self, idempotency_key):
        try:
            return self.records[idempotency_key]
        except KeyError:
            raise IdempotencyItemNotFoundError from None

    def _put_record(self, data_record):
        found = self.records.get(data_record.idempotency_key)
        if found is not None and not found.is_expired:
            raise IdempotencyItemAlreadyExistsError(old_data_record=found)
        self.records[data_record.idempotency_key] = data_record

    def _update_record(self, data_record: DataRecord):
        self.records[data_record.idempotency_key] = data_record

    def _delete_record(self, data_record):
        self.records.pop(data_record.idempotency_key, None)


def powertools():
    """A tool whose calls are found again by their arguments."""

    @idempotent_function(
        data_keyword_argument="params",
        persistence_store=InMemory(),
        config=IdempotencyConfig(expires_after_seconds=24 * 3600),
    )
    def tool(params):
        return ANSWER

    return tool


def tool():
    return ANSWER


def dead():
    raise ConnectionError("unavailable")


def open_breaker():
    breaker = pybreaker.CircuitBreaker(fail_max=5, reset_timeout=600)
    while breaker.current_state != pybreaker.STATE_OPEN:
        try:
            breaker.call(dead)
        except (ConnectionError, pybreaker.CircuitBreakerError):
            pass
    return breaker


PARAMS = json.loads(sys.argv[1])
NUMBER = 0
KEYED = powertools()
CLOSED = pybreaker.CircuitBreaker(fail_max=5, reset_timeout=600)
OPEN = open_breaker()
RETRYING = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(4),
    wait=tenacity.wait_random_exponential(multiplier=0.2, max=4),
    retry=tenacity.retry_if_exception_type(ConnectionError),
)


def powertools_fresh():
    global NUMBER
    NUMBER += 1
    KEYED(params={**PARAMS, "comment": NUMBER})


def powertools_replay():
    KEYED(params=PARAMS)


def tenacity_fresh():
    RETRYING(CLOSED.call, tool)


def pybreaker_open():
    try:
        OPEN.call(tool)
    except pybreaker.CircuitBreakerError:
        return
    raise AssertionError("a call went through an open breaker")


CALLS = {
    "powertools-fresh": powertools_fresh,
    "powertools-replay": powertools_replay,
    "tenacity-fresh": tenacity_fresh,
    "pybreaker-open": pybreaker_open,
}


def main():
    names = ("aws-lambda-powertools", "tenacity", "pybreaker")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    print(f"Python {platform.python_version()}, {versions}", flush=True)
    for line in sys.stdin:
        what, count = line.split()
        call = CALLS[what]
        started = time.perf_counter_ns()
        for _ in range(int(count)):
            call()
        print(time.perf_counter_ns() - started, flush=True)


main()
