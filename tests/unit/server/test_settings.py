"""Settings: where values come from, which source wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodus.server.settings import Settings, SettingsError


def test_later_sources_win(tmp_path: Path) -> None:
    (tmp_path / "nodus.toml").write_text('port = 1\nhost = "localhost"\norg_name = "file"\n')
    env = {"NODUS_DATA_DIR": str(tmp_path), "NODUS_SERVER_PORT": "2", "NODUS_SERVER_ROLES": "api,controllers"}
    found = Settings.load({"port": None, "org_name": "flag"}, env)

    assert (found.port, found.host, found.org_name, found.roles) == (2, "localhost", "flag", ("api", "controllers"))
    assert Settings.load({"port": 3}, env).port == 3


def test_defaults_are_embedded_and_local(tmp_path: Path) -> None:
    found = Settings.load({"data_dir": tmp_path}, {})
    assert (found.host, found.port, found.scheme) == ("127.0.0.1", 8080, "http")
    assert found.store_url == f"sqlite:///{tmp_path / 'nodus.db'}"


def test_empty_variables_count_as_unset(tmp_path: Path) -> None:
    assert Settings.load({"data_dir": tmp_path}, {"NODUS_SERVER_PORT": "", "NODUS_DATA_DIR": ""}).port == 8080


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": 70000}, "port"),
        ({"port": "x"}, "port"),
        ({"starting_grant_usd": "lots"}, "starting_grant_usd"),
        ({"starting_grant_usd": "-1"}, "starting_grant_usd"),
        ({"starting_grant_usd": "999999999999"}, "starting_grant_usd"),
        ({"roles": ("chef",)}, "roles"),
        ({"host": "0.0.0.0"}, "--tls-cert"),
        ({"host": "10.0.0.1"}, "--behind-proxy"),
        ({"tls_cert": "/c"}, "--tls-key"),
        ({"public_url": "nodus.example.com"}, "--public-url"),
        ({"public_url": "https://nodus.example.com/"}, "--public-url"),
        ({"nonsense": 1}, "nonsense: there is no such setting"),
        ({"fundingslice": "10m"}, "did you mean funding_slice?"),
        ({"funding_slice": "1s"}, "funding_slice: 1s is too short"),
        ({"funding_slice": "soon"}, "funding_slice: "),
        ({"low_disk": "much"}, "low_disk: 'much'"),
        ({"storage_limit": "much"}, "storage_limit: 'much'"),
    ],
)
def test_bad_settings_are_one_line(tmp_path: Path, flags: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.load({"data_dir": tmp_path, **flags}, {})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "nodus.toml").mkdir()
    with pytest.raises(SettingsError, match=r"nodus\.toml"):
        Settings.load({"data_dir": tmp_path}, {})


def test_a_price_book_is_found_below_the_data_directory(tmp_path: Path) -> None:
    def found(path: str) -> Path | None:
        return Settings.load({"data_dir": tmp_path}, {"NODUS_SERVER_PRICEBOOK": path}).pricebook

    assert (found("p.yaml"), found("/etc/p.yaml")) == (tmp_path / "p.yaml", Path("/etc/p.yaml"))
