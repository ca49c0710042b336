"""Statistics, histograms and extremes against NumPy's own, and pieces of vectors put together."""

from itertools import pairwise

import numpy as np
import pytest

from gyroscope.measure._pipeline.host_copy import merge_pieces
from gyroscope.measure._pipeline.layer_step import ROW, SUMS
from gyroscope.measure._pipeline.statistics import extremes, histograms, statistics
from gyroscope.store import BINS, STATISTICS, bin_edges
from tests.store.make import count_bins


def values():
    rng = np.random.default_rng(0)
    found = (rng.normal(size=(5, 101)) * np.exp(rng.normal(size=(5, 101)) * 8)).astype(np.float32)
    found[1, ::3] = np.nan
    found[2] = np.nan
    found[3, 1:] = np.nan
    return found


def test_statistics_are_numpys_over_what_is_not_nan():
    found = statistics(values())
    for row, given in zip(found, values(), strict=True):
        there = given[~np.isnan(given)].astype(np.float64)
        if not there.size:
            assert np.isnan(row).all()
            continue
        quantiles = np.quantile(there, [0.05, 0.25, 0.5, 0.75, 0.95])
        expected = [there.mean(), np.sqrt(np.mean(there**2)), *quantiles, there.min(), there.max()]
        np.testing.assert_allclose(row, expected, rtol=1e-6)
    assert len(expected) == len(STATISTICS)


def test_histograms_are_the_stores():
    found = histograms(values())
    assert found.shape == (5, BINS)
    for row, given in zip(found, values(), strict=True):
        np.testing.assert_array_equal(row, count_bins(given))


@pytest.mark.parametrize("nudge", [0, np.inf, -np.inf])
def test_values_at_the_edges_fall_where_the_store_puts_them(nudge):
    edges = np.clip(bin_edges(), 1e-30, 1e30).astype(np.float32)
    given = (np.nextafter(edges, np.float32(nudge)) if nudge else edges)[None]
    np.testing.assert_array_equal(histograms(given)[0], count_bins(given))


def test_extremes_are_ids_of_vectors():
    given = values()
    ids = np.tile(7 * np.arange(101), (5, 1))
    found = extremes(ids, given)
    assert found[0].tolist() == [7 * given[0].argmin(), 7 * given[0].argmax()]
    assert found[1].tolist() == [7 * np.nanargmin(given[1]), 7 * np.nanargmax(given[1])]
    assert found[2].tolist() == [-1, -1]
    assert found[3].tolist() == [0, 0]


def sums_of(w, d):
    ww, wd = w @ w, w @ d
    across = d - wd / ww * w if ww else d
    found = np.zeros(len(SUMS))
    for turn in ("", "old_"):
        found[[ROW[f"{turn}{name}"] for name in ("ww", "wd", "tt")]] = ww, wd, across @ across
    found[ROW["most"]], found[ROW["gg"]] = np.abs(d).max(initial=0.0), d @ d
    return found


def test_pieces_of_a_vector_make_the_whole_without_losing_a_small_turn():
    rng = np.random.default_rng(0)
    w, tangent = rng.normal(size=(2, 3, 40))
    d = 0.5 * w + 1e-6 * tangent  # mostly radial
    cuts = (0, 7, 7, 25, 40)  # one piece is empty
    ids, columns = [], []
    for vector in (2, 0, 1):
        for a, b in pairwise(cuts):
            ids.append(vector)
            columns.append(sums_of(w[vector, a:b], d[vector, a:b]))
    found_ids, found = merge_pieces(np.array(ids), np.array(columns).T)
    assert found_ids.tolist() == [0, 1, 2]
    for vector in range(3):
        np.testing.assert_allclose(found[:, vector], sums_of(w[vector], d[vector]), rtol=1e-9)


def test_whole_vectors_are_only_put_in_order():
    found_ids, found = merge_pieces(np.array([2, 0, 1]), np.tile([2.0, 0.0, 1.0], (len(SUMS), 1)))
    assert found_ids.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found, np.tile([0.0, 1.0, 2.0], (len(SUMS), 1)))
