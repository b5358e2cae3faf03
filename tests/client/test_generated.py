from __future__ import annotations

from tests.shards import not_for_clusters
from tools import generate_settings
from tools.generate_sync import TARGET, generated

pytestmark = not_for_clusters("no server takes part")


def test_the_api_for_threads_is_what_the_api_for_tasks_makes_of_it() -> None:
    stored = {path.name: path.read_text() for path in TARGET.glob("*.py")}
    assert stored == generated(), "run: python -m tools.generate_sync"


def test_the_signature_of_create_queue_has_every_setting() -> None:
    made = generate_settings.generated()
    assert generate_settings.TARGET.read_text() == made, "run: python -m tools.generate_settings"
