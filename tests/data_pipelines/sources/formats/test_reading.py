from data_pipelines.sources.formats.reading import FileReading


class At:
    def __init__(self, place):
        self.place = place

    def num_raw_bytes(self):
        return self.place


def test_the_fraction_counts_files_behind_and_the_place_in_the_open_one():
    reading = FileReading(total_bytes=100)
    assert reading.fraction() == 0
    with reading.of(At(10)):
        assert reading.fraction() == 0.1
    reading.leave_behind(40)
    with reading.of(At(30)):
        assert reading.fraction() == 0.7
    reading.leave_behind(60)
    assert reading.fraction() == 1


def test_files_of_unknown_size_have_no_fraction():
    assert FileReading(total_bytes=0).fraction() is None
