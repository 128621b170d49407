from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.pieces import PieceFolder, Remaining, cut_into_pieces, read_items, write_items
from data_pipelines.stages.stage import LooksAtEach

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))
ITEMS = st.lists(st.builds(Document, ANY_TEXT, ANY_TEXT) | st.builds(Skipped, ANY_TEXT, ANY_TEXT))


@settings(max_examples=50)
@given(ITEMS)
def test_items_come_back_as_they_were(tmp_path_factory, items):
    path = tmp_path_factory.mktemp("pieces") / "new" / "a.jsonl"
    write_items(path, items)
    assert list(read_items(path)) == items
    assert list(path.parent.iterdir()) == [path]


def test_conversations_come_back(tmp_path):
    items = [Document("a", "", ({"role": "user", "content": "a\nb"},)), Document("b", "", ())]
    write_items(tmp_path / "a.jsonl", items)
    assert list(read_items(tmp_path / "a.jsonl")) == items


def test_a_failure_leaves_nothing(tmp_path):
    def items():
        yield Document("a", "x")
        raise OSError

    try:
        write_items(tmp_path / "a.jsonl", items())
    except OSError:
        assert list(tmp_path.iterdir()) == []
    else:
        raise AssertionError


def test_where_a_piece_ends_depends_on_the_items_alone(tmp_path):
    items = [Document(str(number), "x" * 400) for number in range(10)] + [Skipped("s", "why")]
    pieces = cut_into_pieces(tmp_path, iter(items), piece_characters=1000)
    assert pieces.count == 6
    assert [len(list(pieces.items(piece))) for piece in range(6)] == [2, 2, 2, 2, 2, 1]
    assert [item for piece in range(6) for item in pieces.items(piece)] == items
    assert cut_into_pieces(tmp_path / "none", []).count == 0


def test_what_is_removed_is_dropped_in_its_place_for_the_first_reason(tmp_path):
    class Says(LooksAtEach):
        def __init__(self, **places):
            self.places = places

        def fingerprint_parts(self):
            return {}

        def removed(self, folder, piece):
            return {int(place[1:]): reason for place, reason in self.places.items()}

    pieces = PieceFolder(tmp_path, 1)
    pieces.write(0, [Document(str(number), "x") for number in range(4)])
    rest = Remaining(pieces, [(Says(_1="a", _2="a"), tmp_path), (Says(_2="b", _3="b"), tmp_path)])
    assert list(rest.items(0)) == [Document("0", "x"), Skipped("1", "a"), Skipped("2", "a"), Skipped("3", "b")]
