"""The page of the worked example says what its scenarios say, and its verdicts follow from numbers."""

from __future__ import annotations

import pytest
import worked_example as example


def test_the_page_is_what_the_simulator_says() -> None:
    """`python docs/worked_example.py` would write the page that is there."""
    assert example.PAGE.read_text(encoding="utf-8") == example.page()


def test_the_published_memory_follows_from_the_ledger() -> None:
    """60 GB for cache, 111 contexts of 4,096 tokens at 16 bits and 223 at 8, with no pool set by hand."""
    plain, eight = example.ledger("memory"), example.ledger("fp8")
    assert plain.gpu_memory_bytes == 80_000_000_000
    assert plain.kv_cache_bytes == pytest.approx(60e9, rel=0.002)
    assert int(plain.max_concurrency) == 111
    assert int(eight.max_concurrency) == 223
    assert {example.ledger(name).kv_cache_bytes for name in ("static", "continuous")} == {
        plain.kv_cache_bytes
    }


def test_the_published_prices_are_one_price_of_an_hour() -> None:
    """Both are $2.90 an hour at the published rates, to the cent that they are rounded to."""
    assert example.usd_per_million(310) == pytest.approx(2.60, abs=0.005)
    assert example.usd_per_million(2850) == pytest.approx(0.28, abs=0.005)


def test_fresh_prompts_at_the_published_rate_are_beyond_the_peak() -> None:
    """By either counting of a prompt's work."""
    peak = 312e12
    assert all(example.prompt_flops(every) * 9.5 > 1.5 * peak for every in (False, True))


def test_full_contexts_at_measured_bandwidth_are_slower_than_published() -> None:
    """The bare reading of weights and cache already is; the whole step is slower than that."""
    bound = example.bandwidth_bound_per_s("continuous", measured=True)
    assert 111 / example.cached_step_s("continuous") < bound < 2850
    assert example.bandwidth_bound_per_s("continuous", measured=False) > 2850


@pytest.mark.parametrize("name", ["static", "continuous", "fp8"])
def test_no_reading_gives_a_whole_published_line(name: str) -> None:
    """In flight, rate and latency never agree together, to 10 %."""
    told = example.PUBLISHED[name]
    for reading in ("fresh", "open fresh", "short", "open short"):
        run = example.simulated(name, reading)
        pairs = [
            (run["concurrency_mean"], told.in_flight),
            (example.tokens_per_s(run), told.tokens_per_s),
            (run["ttft_s"]["p50"], told.ttft_p50_s),
            (run["e2e_s"]["p99"], told.p99_s),
        ]
        assert any(meant and abs(got / meant - 1) > 0.1 for got, meant in pairs), reading


def test_the_verdicts_quote_what_runs_say() -> None:
    """Fresh prompts reach a third; short ones carry the rate with a third in flight; 8 bits at A."""
    fresh, light = (example.simulated("continuous", reading) for reading in ("fresh", "open short"))
    assert 0.25 < example.tokens_per_s(fresh) / 2850 < 0.36
    assert not example.simulated("continuous", "open fresh")["stable"]
    assert light["stable"]
    assert 30 < light["concurrency_mean"] < 45
    assert light["e2e_s"]["p99"] == pytest.approx(4.1, rel=0.2)
    assert 222 / example.cached_step_s("fp8") == pytest.approx(3900, rel=0.05)
    assert 300 * example.cached_step_s("fp8") / 6.8 == pytest.approx(2.5, abs=0.1)
    assert example.simulated("static", "fresh")["ttft_s"]["p50"] > 1.4
