"""Actions, shapes and errors against the service model that botocore has of SQS."""

from __future__ import annotations

from typing import Any

import botocore.session
import msgspec
import pytest

from penstock.protocols.sqs import errors, shapes
from penstock.protocols.sqs.actions import REQUESTS, Service
from penstock.protocols.sqs.attributes import NAMES
from penstock.protocols.sqs.received import BY_NAME_ONLY, SYSTEM_ATTRIBUTES
from penstock.protocols.sqs.shapes import Shape

MODEL = botocore.session.get_session().get_service_model("sqs")
NOT_HERE = {"InvalidIdFormat", "InvalidSecurity"}
"""As docs/sqs.md says, with the errors of KMS."""
SHARED: dict[str, type[Shape]] = {
    "CreateQueue": shapes.QueueUrlResult,
    "GetQueueUrl": shapes.QueueUrlResult,
    "GetQueueAttributes": shapes.QueueAttributesResult,
    "DeleteMessageBatch": shapes.SettledResult,
    "ChangeMessageVisibilityBatch": shapes.SettledResult,
}
"""Results that several actions have; the others are named for their action."""


def members(shape: Any) -> set[str]:
    return set(shape.members) if shape is not None else set()


def own_members(shape: type[Shape] | None) -> set[str]:
    return set(shape.__struct_encode_fields__) if shape is not None else set()


@pytest.mark.parametrize("name", MODEL.operation_names)
def test_an_action_has_the_members_of_its_model(name: str) -> None:
    operation = MODEL.operation_model(name)
    assert hasattr(Service, name)
    assert own_members(REQUESTS[name]) == members(operation.input_shape)
    assert own_members(SHARED.get(name) or getattr(shapes, f"{name}Result", None)) == members(operation.output_shape)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("SendMessageBatchRequestEntry", shapes.SendMessageBatchRequestEntry),
        ("SendMessageBatchResultEntry", shapes.SendMessageBatchResultEntry),
        ("DeleteMessageBatchRequestEntry", shapes.DeleteMessageBatchRequestEntry),
        ("DeleteMessageBatchResultEntry", shapes.SettledEntry),
        ("ChangeMessageVisibilityBatchRequestEntry", shapes.ChangeMessageVisibilityBatchRequestEntry),
        ("ChangeMessageVisibilityBatchResultEntry", shapes.SettledEntry),
        ("BatchResultErrorEntry", shapes.BatchResultErrorEntry),
        ("Message", shapes.Message),
        ("MessageAttributeValue", shapes.AttributeValue),
        ("ListMessageMoveTasksResultEntry", shapes.MoveTask),
    ],
)
def test_what_is_in_a_list_has_the_members_of_its_model(name: str, own: type[Shape]) -> None:
    model = MODEL.shape_for(name)
    assert own_members(own) == members(model)
    for field in msgspec.structs.fields(own):
        kinds = {"integer": "int", "long": "int", "boolean": "bool", "string": "str", "blob": "bytes"}
        expected = kinds.get(model.members[field.encode_name].type_name)
        assert expected is None or expected in str(field.type), field


def test_every_error_of_the_model_is_known() -> None:
    known = {kind.shape for kind in errors.KINDS}
    assert {shape.name for shape in MODEL.error_shapes if not shape.name.startswith("Kms")} - known == NOT_HERE


def test_attributes_are_those_of_the_model() -> None:
    assert set(MODEL.shape_for("QueueAttributeName").enum) == NAMES
    assert set(MODEL.shape_for("MessageSystemAttributeName").enum) == SYSTEM_ATTRIBUTES - BY_NAME_ONLY
