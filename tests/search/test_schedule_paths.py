from automap_launch.search.schedule_paths import paths_of


def test_round_trips_of_1f1b_are_as_many_as_the_micro_batches_in_flight_allow():
    paths = paths_of("1f1b", 4, 8)
    # Stage 0 has four in flight: the fifth follows when the first is back.
    assert [2, 0, 0, 0, 3, 0] in paths.leave[0].tolist()
    assert paths.leave[0][:, 0].max() == 2

    assert paths.near[0][:, 1].max() == 3
    # From stage 2 by stage 0 and back: the forward task of the micro-batch after those in flight.
    assert paths.turn == 0
    assert paths.leave[2][:, 2].max() == 2
    # With no more micro-batches than stages, stage 0 has run them all before one is back.
    assert paths_of("1f1b", 4, 4).turn == 1
    # The last stage goes from forward to backward at once.
    assert (paths.leave[3] == [0, 0, 0, 8, 8, 0]).all()
