"""The price book: the catalog's file, and an operator's over it."""

import pytest

from nodus.server.billing.pricebook import PriceBookError, read_price_book


def write(tmp_path, text):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    return path


def test_one_s_own_machine_costs_nothing_until_its_operator_says_so():
    book = read_price_book()
    assert (book.hour_of(None), book.hour_of("H100"), book.grading) == (0, 0, 0)


def test_an_operator_s_prices_are_laid_over_the_catalog_s(tmp_path):
    book = read_price_book(write(tmp_path, "compute: {CPU: '0.04', h100-80g: '2.5'}\n"))
    assert book.hour_of(None) == 40_000_000
    assert book.hour_of("H100") == 2_500_000_000
    assert book.hour_of("A100-80G") == 0


def test_the_version_tells_every_change(tmp_path):
    plain = read_price_book().version
    empty = read_price_book(write(tmp_path, "{}\n")).version
    one = read_price_book(write(tmp_path, "grading: '1'\n")).version
    other = read_price_book(write(tmp_path, "grading: '2'\n")).version
    assert plain == empty
    assert len({plain, one, other}) == 3
    assert one.startswith(f"{plain}+")


def test_models_cost_by_the_million_tokens(tmp_path):
    text = "models: {small: {input: '0.15', output: '0.6'}, large: {input: '3', cachedInput: '0.3', output: '15'}}\n"
    models = read_price_book(write(tmp_path, text)).models
    assert models["small"] == (150_000_000, 150_000_000, 600_000_000)
    assert models["large"].cached_input == 300_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grading: 0.5\n", "grading"),
        ("grading: '-1'\n", "'-1' is not an amount"),
        ("grading: '1000000.01'\n", "grading: 1000000.01 is more than 1000000.00 an hour"),
        ("compute: {H100: '2000000'}\n", "compute.H100: 2000000 is more"),
        ("storage: '999999999999'\n", "storage: at most 9000000000.00 can be counted"),
        ("compute: {H1000: '1'}\n", "H1000"),
        ("compute: {H100: '1', h100-80g: '2'}\n", "two prices of H100"),
        ("compute: {CPU: null, default: null}\n", "default"),
        ("gradings: '1'\n", "gradings"),
        ("models: {a: {output: '1'}}\n", "models.a.input"),
        ("models: {a: '1'}\n", "models.a"),
        ("storage: 1\n", "storage"),
        ("- 1\n", "no mapping"),
        ("a: [\n", "can't be read"),
        ("version: 2026-11-01\n", "version"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name_and_field(tmp_path, text, said):
    path = write(tmp_path, text)
    with pytest.raises(PriceBookError) as refused:
        read_price_book(path)
    assert str(path) in refused.value.message
    assert said in refused.value.message
    assert refused.value.fix


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PriceBookError, match=r"absent\.yaml"):
        read_price_book(tmp_path / "absent.yaml")
