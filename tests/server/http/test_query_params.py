"""Parameters of a query or a form."""

import pytest

from skymount.server.http.forms import boolean, decode_path, form_params, number, parse_query
from skymount.server.http_error import HttpError
from tests.server.http_client import request_of


def test_form_parameters() -> None:
    """Query and urlencoded body are merged, and the body wins."""
    form = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    request = request_of(headers=form, query="a=1&b=2")
    assert form_params(request, b"b=3&c=%C3%A4&c=5\r\n") == {"a": "1", "b": "3", "c": "ä"}
    assert form_params(request_of(), b"a=1") == {"a": "1"}
    other = request_of(headers={"content-type": "application/json"}, query="a=1")
    assert form_params(other, b"a=2") == {"a": "1"}
    for body in (b"\xff", b"a=%ff", b"&".join([b"a=1"] * 101)):
        with pytest.raises(HttpError) as refused:
            form_params(request_of(), body)
        assert refused.value.status == 400


def test_parameters_follow_go() -> None:
    """The first of a name counts; booleans and numbers parse strictly."""
    assert parse_query("a=1&a=2&b=%20+") == {"a": "1", "b": "  "}
    assert boolean({"x": "T"}, "x")
    assert not boolean({"x": "FALSE"}, "x")
    assert not boolean({}, "x")
    assert number({"x": "0777"}, "x", base=8) == 0o777
    assert number({}, "x") is None
    for text in ("yes", "tRUE", " true"):
        with pytest.raises(HttpError):
            boolean({"x": text}, "x")
    for text in ("1.5", "-1", "+1", "1_000", "٣", "9" * 19):
        with pytest.raises(HttpError):
            number({"x": text}, "x")
    assert decode_path("a%2Fb+c%2B%20") == "a/b+c+ "
