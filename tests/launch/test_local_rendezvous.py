from lmtrain.launch.local_rendezvous import LocalRendezvous


def test_each_start_of_a_job_has_a_store_of_its_own():
    rendezvous = LocalRendezvous(run_id="job")
    first, second = rendezvous.next_rendezvous(), rendezvous.next_rendezvous()
    first.store.set("key", "value")
    assert second.store.check(["key"]) is False
    assert (first.rank, first.world_size) == (0, 1)
    assert (rendezvous.get_run_id(), rendezvous.num_nodes_waiting()) == ("job", 0)


def test_a_job_that_ended_is_closed():
    rendezvous = LocalRendezvous(run_id="job")
    assert not rendezvous.is_closed()
    rendezvous.set_closed()
    assert rendezvous.is_closed()
    assert rendezvous.shutdown()
