"""The time per layer is told for the folder a test lies in."""

import pytest

from tests.layers import layer_of


@pytest.mark.parametrize(
    ("nodeid", "layer"),
    [
        ("tests/ledger/test_admission.py::test_x", "ledger"),
        ("tests/unit/model/test_capacity.py::TestX::test_y[a/b]", "unit"),
        ("tests/test_top.py::test_z", "(top)"),
    ],
)
def test_a_layer_is_the_first_folder_under_tests(nodeid: str, layer: str) -> None:
    assert layer_of(nodeid) == layer
