"""Schemathesis over REST, with hostile members on the roster. No generated request may get a 5xx."""

from __future__ import annotations

import logging
import random
import re
import warnings
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.attack.hall import Hall
from tests.attack.tally import Tally

# Revoking tokens would end the run, and messages to agents start programs.
SKIPPED_PATHS = re.compile(r"/(revoke|messages)/|/agents/$")
HOSTILE = ["lists", "hostile", "pipe"]
PAUSING_VERBS = {
    "start",
    "stop",
    "restart",
    "enable",
    "disable",
}  # they would remove the hostile lists for the rest of the run
EXAMPLES = 40  # of each operation and mode


def generated_requests(hall: Hall, tally: Tally) -> None:
    """Requests to every operation of the OpenAPI document, with valid and with invalid data."""
    headers = {"Authorization": f"Bearer {hall.tokens['fuzzer']}", "Connection": "close"}
    base = f"http://127.0.0.1:{hall.port}"
    document = requests.get(f"{base}/api/schema/?format=json", headers=headers, timeout=60).json()
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=base)
    tools = hostile_tool_names(base, headers)
    for operation_result in schema.get_all_operations():
        operation = operation_result.ok()
        if SKIPPED_PATHS.search(operation.path):
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            attack_operation(tally, operation, mode, headers, tools)


def attack_operation(
    tally: Tally, operation: Any, mode: GenerationMode, headers: dict[str, str], tools: list[str]
) -> None:
    choice = random.Random(f"{operation.label}{mode}")

    @settings(
        max_examples=tally.share_of(EXAMPLES, 2),
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case: Any) -> None:
        use_hostile_names(case, operation.path, choice, tools)
        try:
            response = case.call(headers=headers, timeout=30)
        except requests.RequestException as error:
            if not isinstance(error, (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL)):
                tally.expect(False, f"{operation.label}: {type(error).__name__}")
            return
        tally.expect(response.status_code < 500, f"{operation.label}: {response.status_code}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            attempt()
        except Exception as error:  # noqa: BLE001 - what cannot be generated is no fault of the hall
            if "Unsatisfiable" not in type(error).__name__:
                tally.expect(False, f"{operation.label}: schemathesis says {type(error).__name__}")


def use_hostile_names(case: Any, path: str, choice: random.Random, tools: list[str]) -> None:
    """Put names of real hostile members and tools into half of the requests, instead of generated names."""
    verb = path.rstrip("/").rpartition("/")[2]
    if case.path_parameters and choice.random() < 0.5:
        if "name" in case.path_parameters:
            case.path_parameters["name"] = "spare" if verb in PAUSING_VERBS else choice.choice(HOSTILE)
        if "tool" in case.path_parameters:
            case.path_parameters["tool"] = choice.choice(tools)


def hostile_tool_names(base: str, headers: dict[str, str]) -> list[str]:
    reply = requests.get(f"{base}/api/members/lists/tools/", headers=headers, timeout=30)
    return [str(row["name"]) for row in reply.json()["tools"]] if reply.ok else ["echo"]
