"""Tables of what a smooth form misses."""

from typing import Any

import numpy as np
import pytest

from sim.faults import InputFault
from sim.hardware.residuals import Residuals, read_residuals
from sim.model.fields import Fields

M, N = np.array([1.0, 16.0, 64.0]), np.array([512.0, 8192.0])
RATIOS = np.array([[1.0, 1.2], [0.9, 1.1], [1.05, 0.8]])
TABLE = Residuals({"m": M, "n": N}, RATIOS)


def test_a_table_gives_back_its_nodes() -> None:
    """At a node the ratio is the one that was written there."""
    np.testing.assert_allclose(TABLE.factor(m=M[:, None], n=N[None, :]), RATIOS)


def test_half_way_in_the_logarithm_is_the_geometric_mean() -> None:
    """4 lies half way from 1 to 16, 2048 half way from 512 to 8192."""
    assert TABLE.factor(m=4.0, n=512.0) == pytest.approx((1.0 * 0.9) ** 0.5)
    assert TABLE.factor(m=4.0, n=2048.0) == pytest.approx((1.0 * 0.9 * 1.2 * 1.1) ** 0.25)


def test_the_edge_holds_outside_the_grid() -> None:
    """Nothing is extrapolated: beyond the last node the table says what it says there."""
    assert TABLE.factor(m=1e6, n=1.0) == pytest.approx(1.05)
    assert TABLE.factor(m=0.1, n=1e9) == pytest.approx(1.2)


def test_an_axis_of_one_node_has_no_say() -> None:
    """A table over m alone, written with one n, is the same at every n."""
    table = Residuals({"m": M, "n": np.array([1.0])}, RATIOS[:, :1])
    np.testing.assert_allclose(table.factor(m=M, n=777.0), RATIOS[:, 0])


def test_a_table_at_one_quantity_is_the_table_of_the_others() -> None:
    """Fixing n first and asking for m later is asking for both, at nodes, between and outside."""
    for n in (100.0, 512.0, 3000.0, 1e5):
        np.testing.assert_allclose(
            TABLE.at(n=n).factor(m=[0.5, 1, 7, 64, 99]), TABLE.factor(m=[0.5, 1, 7, 64, 99], n=n)
        )
    assert TABLE.at(m=3.0, n=700.0).factor() == pytest.approx(float(TABLE.factor(m=3.0, n=700.0)))


def test_a_table_is_read_in_thousandths_the_last_axis_fastest() -> None:
    """Of three m and two n: a line for each m."""
    section = {"m": [1, 16, 64], "n": [512, 8192], "permille": "0 200\n-100 100\n50 -200\n"}
    read = read_residuals(Fields({"residual": section}, "here"), "m", "n", "k")
    assert read is not None
    assert list(read.axes) == ["m", "n"]
    np.testing.assert_allclose(read.ratios, RATIOS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"m": [64, 1]}, "m must rise from a number above 0"),
        ({"m": [0, 64]}, "m must rise from a number above 0"),
        ({"permille": "1 2 3"}, r"must be 2 numbers \(got 3\)"),
        ({"permille": "1 -1000"}, r"must be above -1000, a time of nothing \(got -1000\)"),
        ({"permille": "1 1.5"}, r"must be whole numbers with spaces between \(got 1.5\)"),
    ],
)
def test_a_table_that_cannot_be_is_a_sentence(changes: dict[str, Any], said: str) -> None:
    """Nodes that do not rise, too many numbers, a kernel that takes no time, and fractions."""
    fields = Fields({"residual": {"m": [1, 64], "permille": "100 -50", **changes}}, "here")
    read_residuals(fields, "m")
    with pytest.raises(InputFault, match=said):
        fields.close()
