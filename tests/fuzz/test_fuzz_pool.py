"""How a search is shared by processes."""

from tlmatrix.fuzz.pool import job_sizes


def jobs(wanted: dict[str, int], workers: int) -> int:
    sizes = job_sizes(wanted, workers)
    return sum(-(-examples // sizes[path]) for path, examples in wanted.items())


def test_one_spec_is_shared_by_all_workers_evenly() -> None:
    assert job_sizes({"a": 30}, 2) == {"a": 15}
    assert job_sizes({"a": 500}, 32) == {"a": 16}


def test_many_specs_have_some_jobs_a_worker_for_each_compiles_its_own() -> None:
    many = {f"spec {number}": 400 for number in range(22)}
    assert 4 * 32 <= jobs(many, 32) <= 5 * 32


def test_a_spec_with_few_examples_has_one_job_beside_others_with_many() -> None:
    assert jobs({"few": 3, "many": 900}, 4) == jobs({"many": 900}, 4) + 1


def test_a_job_of_a_long_search_ends_soon_enough_to_learn_from_others() -> None:
    assert job_sizes({"a": 100_000}, 2) == {"a": 250}


def test_no_more_workers_than_examples_have_a_job() -> None:
    assert job_sizes({"a": 3}, 64) == {"a": 1}
