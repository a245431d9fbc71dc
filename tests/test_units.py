"""Human durations and sizes."""

import pytest

from automap_launch.units import format_bytes, format_seconds, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("1h30m", 5400), ("90s", 90), ("500ms", 0.5), ("20min", 1200), (3, 3), ("7", 7)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "3 days later", "h", "2h!"])
def test_what_is_no_duration_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="is written like"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("16MiB", 2**24), ("1.5GB", 1_500_000_000), ("12", 12), (12, 12), ("2 KiB", 2048)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "big", "12 apples", "-3MB"])
def test_what_is_no_size_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="is written like"):
        parse_bytes(text)


def test_formats_read_well() -> None:
    assert [format_seconds(s) for s in (2.5e-5, 0.0123, 4.5, 600, 7300)] == [
        "25 µs",
        "12.3 ms",
        "4.5 s",
        "10 min",
        "2.03 h",
    ]
    assert [format_bytes(b) for b in (12, 2048, 3 * 2**20, 1.5 * 2**30)] == ["12 B", "2 KiB", "3 MiB", "1.5 GiB"]
