"""Amazon SNS beside SQS, on the same port: topics, subscriptions of SQS queues, filter policies.

A topic is a queue, and a subscription is a channel of it (ADR 0024). Read `service.py` first (the actions), then
`delivery.py` (from a topic to the queues that are subscribed), `filters.py` (filter policies) and `wire.py` (Query).
"""
