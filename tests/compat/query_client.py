"""A boto3 client that speaks the Query protocol, as clients did before botocore 1.31.81.

Today's service model describes JSON only. The names that the old model gave to lists and maps on the wire are put
back, and botocore's own serializer, signer and parser for Query do the rest.
"""

from __future__ import annotations

import copy
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.loaders import Loader

from tests.compat.server import REGION, Server

_LIST_MEMBERS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
_MAP_MEMBERS = {
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Tags": "Tag",
    "tags": "Tag",
}


def as_query(model: dict[str, Any]) -> dict[str, Any]:
    """The model of the JSON protocol, made one of the Query protocol."""
    model = copy.deepcopy(model)
    metadata = model["metadata"]
    metadata |= {"protocol": "query", "protocols": ["query"]}
    for name in ("awsQueryCompatible", "jsonVersion", "targetPrefix"):
        metadata.pop(name, None)
    for name, operation in model["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    for name, shape in model["shapes"].items():
        if shape["type"] == "list":
            shape["member"]["locationName"] = _LIST_MEMBERS[name]
        elif shape["type"] == "map":
            shape["key"]["locationName"] = "Key" if name == "TagMap" else "Name"
            shape["value"]["locationName"] = "Value"
        elif shape["type"] == "structure":
            for member, traits in shape["members"].items():
                if model["shapes"][traits["shape"]]["type"] == "map":
                    traits["locationName"] = _MAP_MEMBERS[member]
    return model


class _QueryLoader(Loader):
    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        model = super().load_service_model(service_name, type_name, api_version)
        return as_query(model) if (service_name, type_name) == ("sqs", "service-2") else model


def query_client(server: Server) -> Any:
    """A client of a session of its own."""
    session = botocore.session.Session()
    session.register_component("data_loader", _QueryLoader(session.get_config_variable("data_path")))
    return session.create_client(
        "sqs",
        region_name=REGION,
        endpoint_url=server.url,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"max_attempts": 0}),
    )
