"""Where a webhook may go: every kind of address, and every way to write a URL that means something else."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from workq.config.addresses import Allowed, Ports, is_external
from workq.errors import ConfigError
from workq.outbound.target import URL_MAX, TargetPolicy, check_header_alias, check_headers, checked

EXTERNAL = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.216.34", "100.63.255.255", "100.128.0.0"),
    *("126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0"),
    *("192.0.1.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255"),
    *("168.63.129.15", "168.63.129.17", "166.7.255.255", "166.12.0.0", "199.36.153.3", "199.36.153.12"),
    *("198.20.0.0", "198.51.99.255", "203.0.112.255", "203.0.114.0", "223.255.255.255"),
    *("2001:4860:4860::8888", "2606:4700:4700::1111", "2a00:1450::1", "2003::1", "::ffff:8.8.8.8"),
]
SPECIAL = [
    "0.0.0.0",  # noqa: S104 - nothing is bound to it
    *("0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255", "127.0.0.1"),
    *("127.255.255.255", "169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.0", "172.31.255.255"),
    *("192.0.0.1", "192.0.0.170", "192.0.2.1", "192.88.99.1", "192.168.0.1", "192.168.255.255", "198.18.0.1"),
    *("198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"),
    *("::ffff:0:127.0.0.1", "64:ff9b::a00:1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:10::1"),
    *("2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254"),
    *("168.63.129.16", "::ffff:168.63.129.16", "161.26.0.7", "166.11.255.255", "192.80.8.124", "199.36.153.11"),
    *("100.100.100.200", "192.0.0.192", "fd20:ce::254", "fd00:42::42"),  # more services of clouds
    *("fe80::1", "febf::1", "fec0::1", "ff00::1", "ff02::1", "ff0e::1"),
]
PUBLIC = TargetPolicy.of()


@pytest.mark.parametrize("address", EXTERNAL)
def test_a_public_address_is_external(address: str) -> None:
    assert is_external(ip_address(address))
    assert Allowed.of("external").permits(ip_address(address))


@pytest.mark.parametrize("address", SPECIAL)
def test_no_special_address_is_external(address: str) -> None:
    assert not is_external(ip_address(address))
    assert not Allowed.of("external").permits(ip_address(address))


@pytest.mark.parametrize(
    ("text", "permitted", "refused"),
    [
        ("external", ["8.8.8.8"], ["10.0.0.1", "127.0.0.1"]),
        ("private", ["10.1.2.3", "172.20.0.1", "192.168.1.1", "fd00::1", "::ffff:10.0.0.1"], ["8.8.8.8", "127.0.0.1"]),
        ("loopback", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"], ["10.0.0.1", "8.8.8.8"]),
        ("external, private", ["8.8.8.8", "10.0.0.1"], ["169.254.169.254", "127.0.0.1"]),
        ("10.0.0.0/24", ["10.0.0.5"], ["10.0.1.5", "8.8.8.8"]),
        ("10.0.0.5", ["10.0.0.5"], ["10.0.0.6"]),
        ("fd12::/16", ["fd12::1"], ["fd13::1"]),
        ("*", ["8.8.8.8", "169.254.169.254", "::1"], []),
        ("hooks.local", [], ["10.0.0.1", "8.8.8.8"]),
    ],
)
def test_presets_networks_and_addresses_permit_what_they_name(
    text: str, permitted: list[str], refused: list[str]
) -> None:
    allowed = Allowed.of(text)

    assert [address for address in permitted if not allowed.permits(ip_address(address))] == []
    assert [address for address in refused if allowed.permits(ip_address(address))] == []


@pytest.mark.parametrize("name", ["metadata.google.internal", "Metadata.Google.Internal.", "instance-data", "metadata"])
def test_the_name_of_a_clouds_own_service_is_refused_also_where_a_proxy_would_look_it_up(name: str) -> None:
    url = f"http://{name}/computeMetadata/v1/"

    for policy in (PUBLIC, TargetPolicy.of("external,private", proxy="http://proxy.example:3128")):
        with pytest.raises(ConfigError, match=r"blocked name .* \(set WORKQ_WEBHOOK_ALLOW=external.* to permit\)"):
            checked(url, policy)
    assert [checked(url, TargetPolicy.of(allow)).url for allow in ("*", f"external,{name.rstrip('.')}")] == [url, url]


def test_a_host_is_permitted_by_its_very_name() -> None:
    allowed = Allowed.of("external,Hooks.local")

    assert [
        name for name in ("hooks.local", "HOOKS.LOCAL.", "a.hooks.local", "local") if allowed.permits_host(name)
    ] == [
        "hooks.local",
        "HOOKS.LOCAL.",
    ]


def test_a_refusal_names_the_setting_that_would_permit_it() -> None:
    with pytest.raises(
        ConfigError, match=r"blocked address 10\.0\.0\.5 \(set WORKQ_WEBHOOK_ALLOW=external,10\.0\.0\.5 "
    ):
        checked("https://10.0.0.5/hook", PUBLIC)


@pytest.mark.parametrize("text", ["", " ", "everything!", "10.0.0.0/33", "10.0.0.1/24", "256.1.1.1", "127.1", "a b"])
def test_what_permits_nothing_is_no_setting(text: str) -> None:
    with pytest.raises(ConfigError):
        Allowed.of(text)


@pytest.mark.parametrize(
    ("text", "permitted", "refused"),
    [
        ("", [80, 443, 1024, 8080, 3000, 65535], [22, 25, 81, 1023, 3306, 5432, 5672, 6379, 9200, 11211, 27017]),
        ("443", [443], [80, 8443]),
        ("80,443,6000-6379", [80, 443, 6379], [22, 8080]),
    ],
)
def test_ports_are_those_of_the_web_or_those_that_are_named(
    text: str, permitted: list[int], refused: list[int]
) -> None:
    ports = Ports.of(text)

    assert [port for port in permitted if not ports.permits(port)] == []
    assert [port for port in refused if ports.permits(port)] == []


@pytest.mark.parametrize("text", ["0", "65536", "443-80", "http", "1-", "-1", "443;80"])
def test_what_is_no_port_is_no_setting(text: str) -> None:
    with pytest.raises(ConfigError):
        Ports.of(text)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://example.org/hooks?a=%20b", "example.org", 443),
        ("http://example.org", "example.org", 80),
        ("https://Example.ORG:8443/", "example.org", 8443),
        ("https://example.org./", "example.org.", 443),
        ("https://8.8.8.8/", "8.8.8.8", 443),
        ("https://[2606:4700::1]/", "2606:4700::1", 443),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443),
        ("https://a-1.b2.example/", "a-1.b2.example", 443),
    ],
)
def test_a_url_of_the_public_web_may_be_called(url: str, host: str, port: int) -> None:
    target = checked(url, PUBLIC)

    assert (target.url, target.host, target.port) == (url, host, port)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///etc/passwd", "need http"),
        ("gopher://example.org/", "need http"),
        ("ftp://example.org/", "need http"),
        ("//example.org/", "need http"),
        ("example.org/hooks", "need http"),
        ("http://", "no host"),
        ("http:///path", "no host"),
        ("http://:80/", "no host"),
        ("https://user@example.org/", "user or a password"),
        ("https://user:password@example.org/", "user or a password"),
        ("https://example.org@10.0.0.1/", "user or a password"),
        ("http://127.1/", "number"),
        ("http://0x7f000001/", "number"),
        ("http://0x7f.1/", "number"),
        ("http://2130706433/", "number"),
        ("http://0177.0.0.01/", "number"),
        ("http://127.0.0.1./", "number"),
        ("http://[::ffff:127.0.0.1]/", "blocked address"),
        ("http://[::1]/", "blocked address"),
        ("http://[fe80::1%25eth0]/", ""),
        ("http://[example.com]/", ""),
        ("http://[8.8.8.8]/", ""),
        ("http://127.0.0.1/", "blocked address"),
        ("http://169.254.169.254/latest/meta-data/", "blocked address"),
        ("http://10.0.0.1/", "blocked address"),
        ("https://b\u00fccher.example/", "xn--"),
        ("https://\u0435xample.org/", "xn--"),
        ("https://example.org:22/", "blocked port 22"),
        ("https://example.org:6379/", "blocked port 6379"),
        ("https://example.org:0/", "blocked port"),
        ("https://example.org:99999/", ""),
        ("https://example.org:port/", ""),
        ("https://example.org/#top", "#"),
        ("https://example.org/a b", "ASCII"),
        ("https://example.org/\n", "ASCII"),
        ("https://example.org\\@10.0.0.1/", "ASCII"),
        ("https://exam\u3002ple.org/", "xn--"),
        ("https://exa_mple!.org/", "no name"),
        ("https://-example.org/", "no name"),
        ("https://a..b/", "no name"),
        ("https://example.org/" + "a" * 65_536, f"at most {URL_MAX}"),
        (None, "need text"),
        (b"https://example.org/", "need text"),
    ],
)
def test_what_could_mean_something_else_is_refused(url: object, said: str) -> None:
    with pytest.raises(ConfigError, match=r"^URL: ") as raised:
        checked(url, PUBLIC)

    assert said in str(raised.value)
    assert "password@" not in str(raised.value)


def test_only_https_may_be_permitted() -> None:
    with pytest.raises(ConfigError, match="WORKQ_WEBHOOK_SCHEMES=https"):
        checked("http://example.org/", TargetPolicy.of(schemes="https"))


def test_headers_of_a_receiver_are_kept_in_lower_case() -> None:
    assert check_headers({"Authorization": "Bearer x", "X-Shop": "1"}) == {"authorization": "Bearer x", "x-shop": "1"}


@pytest.mark.parametrize(
    "headers",
    [
        *({"webhook-id": "1"}, {"Webhook-Signature": "1"}, {"webhook-anything": "1"}, {"Host": "a"}, {"": "a"}),
        *({"Content-Length": "1"}, {"transfer-encoding": "chunked"}, {"User-Agent": "x"}, {"a b": "1"}, {"a:": "1"}),
        *({"a": "1\r\nwebhook-id: 2"}, {"a": "\u00fc"}, {"a": " 1"}, {"a": "x" * 5000}, {"a": "1", "A": "2"}),
        {str(number): "1" for number in range(60)},
    ],
)
def test_headers_that_are_ours_or_that_http_cannot_carry_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^header"):
        check_headers(headers)


def test_an_alias_is_a_name_in_lower_case() -> None:
    assert [check_header_alias(one) for one in ("svix", "X-Shop")] == ["svix", "x-shop"]


@pytest.mark.parametrize(
    "alias", ["", "svix-", "two words", "a\r\nb", "wébhook", "webhook", "Webhook", "a" * 41, None, 7]
)
def test_an_alias_that_http_cannot_carry_or_that_is_ours_is_refused(alias: Any) -> None:
    with pytest.raises(ConfigError, match=r"^header"):
        check_header_alias(alias)
