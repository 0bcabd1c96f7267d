"""Jobs of a search for several workers."""

from tlmatrix.engine.searches import job_sizes, jobs_per_configuration


def jobs(wanted, workers):
    sizes = job_sizes(wanted, workers)
    return sum(-(-examples // sizes[path]) for path, examples in wanted.items())


def test_job_sizes_of_one_spec():
    assert job_sizes({"a": 30}, 2) == {"a": 15}
    assert job_sizes({"a": 500}, 32) == {"a": 16}


def test_job_sizes_of_many_specs():
    many = {f"spec {number}": 400 for number in range(22)}
    assert 4 * 32 <= jobs(many, 32) <= 5 * 32


def test_job_sizes_of_small_and_large_specs():
    assert jobs({"few": 3, "many": 900}, 4) == jobs({"many": 900}, 4) + 1


def test_job_sizes_of_a_long_search():
    assert job_sizes({"a": 100_000}, 2) == {"a": 250}


def test_job_sizes_with_more_workers_than_examples():
    assert job_sizes({"a": 3}, 64) == {"a": 1}


def test_small_jobs_share_a_configuration():
    assert [jobs_per_configuration(examples) for examples in (1, 15, 16, 17, 250)] == [
        32,
        2,
        2,
        1,
        1,
    ]
