"""What is kept of a file."""

from pathlib import Path

from helpers import odd_models as odd
from helpers.odd_models import saved
from memplan.proto.metadata import Unreadable, get_metadata, set_metadata
from memplan.proto.read import read_model
from memplan.shapes.prepare import prepare


def test_metadata_survives_others_and_damage() -> None:
    model = odd.training()
    model.metadata_props.add(key="author", value="somebody")
    model.metadata_props.add(key="memplan.old", value="1")
    model.metadata_props.add(key="memplan.broken", value="{")
    assert get_metadata(model) == {"old": 1, "broken": Unreadable("is not JSON")}
    set_metadata(model, {"dims": {"N": 3}})
    assert get_metadata(model) == {"dims": {"N": 3}}
    assert [item.value for item in model.metadata_props if item.key == "author"] == ["somebody"]


def test_the_file_in_memory_is_the_file_on_disk(tmp_path: Path) -> None:
    path = saved(odd.training(), tmp_path)
    proto = read_model(path)
    assert proto.SerializeToString() == path.read_bytes()
    prepare(proto, path, {})
    assert proto.SerializeToString() == path.read_bytes()
