"""Uses of parameters in the IR of kernels."""

from tlmatrix.draft.factories import trace
from tlmatrix.draft.roles import Role, recognize
from tlmatrix.draft.targets import target_of
from tlmatrix.draft.uses import Selection


def _observed(name):
    return trace(target_of(f"traced_strangers:{name}"))


def test_offsets_are_read_at_consecutive_indices_and_start_rows():
    used = _observed("packed_scale").uses
    assert used.consecutive == {"Ends"}
    assert Selection("Ends", "X", 0, "start") in used.selections
    assert Selection("Ends", "Y", 0, "start") in used.selections
    assert used.written == {"Y"}
    assert used.tile("X", 0) == 32


def test_positions_in_a_sequence_are_not_rows_of_the_packed_tensor():
    interface = _observed("packed_scale")
    of_cos = [each for each in interface.uses.selections if each.tensor == "Cos"]
    assert of_cos == [Selection("Ends", "Cos", 0, "within")]
    recognition = recognize(interface)
    assert recognition.roles == {"Ends": Role("offsets_of", "seqlens")}
    assert recognition.dims == {
        "total": "sum(seqlens)",
        "batch": "len(seqlens)",
        "positions": "max(seqlens)",
    }
    assert [packing.tile for packing in recognition.packings] == [32]


def test_values_are_followed_through_variables_to_indices():
    used = _observed("paged_gather").uses
    assert Selection("Table", "Pool", 0, "index") in used.selections
    assert Selection("Word", "Embed", 0, "index") in used.selections
    assert Selection("Lens", "Table", 1, "within") in used.selections
    assert "Lens" in used.bounds
    assert used.consecutive == set()


def test_values_are_followed_through_shared_memory_and_masks_bound_positions():
    used = _observed("staged_gather").uses
    pool = {each for each in used.selections if each.tensor == "Pool"}
    assert pool == {Selection("Table", "Pool", 0, "index")}
    assert "Valid" in used.bounds


def test_a_value_compared_with_a_column_is_an_index_of_columns():
    interface = _observed("paged_gather")
    assert Selection("Target", "Y", 1, "index") in interface.uses.selections
    roles = recognize(interface).roles
    assert roles["Target"] == Role("between", ("0", "dim - 1"))
    assert roles["Word"] == Role("between", ("0", "vocab - 1"))


def test_a_gemm_names_its_two_factors():
    interface = _observed("product")
    assert interface.uses.products == {("A", "B")}


def test_a_step_of_a_flat_index_is_no_step_of_its_dimensions():
    used = _observed("flat_double").uses
    assert used.tile("Y", 0) == 128
    assert used.tile("X", 0) is None
    assert used.tile("X", 1) is None


def test_an_address_from_which_the_kernel_reads_is_not_written():
    assert _observed("copied_asynchronously").uses.written == {"Y"}
