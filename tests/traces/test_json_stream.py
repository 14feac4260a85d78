"""JSON that comes piece by piece, in every form that programs write."""

import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from loom.errors import UsageError
from loom.traces import stream as module
from loom.traces.stream import JsonStream

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), min_size=1, max_size=5)
FORMS = {
    "lines": lambda values: "\n".join(json.dumps(value, ensure_ascii=False) for value in values),
    "lines with blank ones": lambda values: "\r\n\r\n".join(map(json.dumps, values)) + "\r\n",
    "array": lambda values: json.dumps(values, ensure_ascii=False),
    "array on lines": lambda values: json.dumps(values, indent=2),
    "array of jq -c": lambda values: json.dumps(values, separators=(",", ":")),
    "one after another on lines": lambda values: "\n".join(json.dumps(value, indent=2) for value in values),
}


def pieces(text, size):
    data = text if isinstance(text, bytes) else text.encode()
    return [data[start : start + size] for start in range(0, len(data), size)]


def read(text, size=5):
    return list(JsonStream(pieces(text, size)))


@pytest.mark.parametrize("form", FORMS)
@given(values=OBJECTS, size=st.integers(1, 40), has_mark=st.booleans())
@example(values=[{"a": "\\"}, {"b": '"\\"'}, {}], size=1, has_mark=True)
def test_the_values_are_those_of_the_whole_text(form, values, size, has_mark):
    assume(values[0] or "one after" not in form)  # a first line that is a value says that each line is one
    text = ("\ufeff" if has_mark else "") + FORMS[form](values)
    assert [value for _, value in read(text, size)] == values


@pytest.mark.parametrize("form", ["array on lines", "one after another on lines", "lines"])
def test_each_value_has_the_number_of_its_first_line(form):
    text = "\n\n" + FORMS[form]([{"a": [1, 2]}, {"b": 3}])
    lines = text.split("\n")
    for line, value in read(text):
        assert next(iter(value)) in "".join(lines[line - 1 : line + 1])
        assert lines[line - 1].strip().startswith("{")


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1}\n{"a": }\n', "line 2: this is not JSON"),
        ('{"a": 1}\n\n{"a": 1\n', "line 3: this is not JSON"),
        ('{bad}\n{"a": 1}', "line 1: this is not JSON"),
        ("hello\n", "line 1: this is not JSON"),
        ('[{"a": 1},\n {"b": }]', "line 2: this is not JSON"),
        ('[\n{\n"b":\n}\n]', "line 4: this is not JSON"),
        ('[{"a": 1},,{"a": 1}]', "line 1: this is not JSON"),
        ('[{"a": 1}]\n]', "line 2: this is not JSON"),
        ('[{"a": 1}]\nmore', "line 2: this is not JSON"),
        ('[{"a": 1},\n', "line 2: the array that begins here or before does not end"),
        ('{\n"a": 1}\n}', "line 3: this is not JSON"),
        ('{"a": 1}\n' + DEEP, "line 2: this is nested too deeply"),
        ('{"a": 1}\n{"a": ' + DEEP + "}", "line 2: this is nested too deeply"),
        (DEEP, "line 1: this is nested too deeply"),
        ('{"a":' + DEEP + "}", "line 1: this is nested too deeply"),
        (b'{"a": 1}\n{"a": "\xff"}', "line 2: this is not UTF-8 text"),
        (b'[{"a": 1},\n{"a": "\xe9"}]', "line 2: this is not UTF-8 text"),
        ('{"a": 1}'.encode("utf-16"), "line 1: this is not UTF-8 text"),
        ('{"a": 1}\n{"a": ' + "1" * 5000 + "}", "line 2: this cannot be read"),
    ],
    ids=range(19),
)
def test_what_cannot_be_read_is_named_by_its_line(text, said):
    with pytest.raises(UsageError, match=said):
        read(text, size=4096)


@pytest.mark.parametrize("text", ["", " \n ", "\ufeff", "[]", " [ ] "])
def test_an_empty_text_has_no_value(text):
    assert read(text) == []


@pytest.mark.parametrize("form", ["lines", "array", "one after another on lines"])
def test_one_value_that_is_too_large_is_refused_before_it_is_held(form, monkeypatch):
    monkeypatch.setattr(module, "MAX_VALUE", 1000)
    taken = []

    def endless():
        yield FORMS[form]([{"a": 1}]).removesuffix("]").encode() + (b"," if form == "array" else b"\n") + b'{"b": "'
        while True:
            taken.append(100)
            yield b"x" * 100

    stream = iter(JsonStream(endless()))
    assert next(stream) == (1, {"a": 1})
    with pytest.raises(UsageError, match="one value has more than"):
        next(stream)
    assert 900 < sum(taken) < 1300


@pytest.mark.parametrize("form", FORMS)
def test_no_more_is_read_than_the_next_value_needs(form):
    text = FORMS[form]([{"number": n, "text": "x" * 100} for n in range(1000)])
    given = pieces(text, 50)
    left = list(reversed(given))

    def taken():
        while left:
            yield left.pop()

    number = -1
    for number, (_, value) in enumerate(JsonStream(taken())):
        assert value["number"] == number
        used = sum(map(len, given)) - sum(map(len, left))
        assert used < (number + 2) * len(text) / 990 + 100
    assert number == 999


def test_the_first_line_tells_what_it_is():
    assert JsonStream([b'\xef\xbb\xbf{"loom":"mem', b'ory"}\n{']).begins_with("loom")
    for other in (b'{"room": 1}\n', b'["loom"]', b'"loom"\n', b'{\n"loom": 1}', b""):
        assert not JsonStream([other]).begins_with("loom")


def test_lines_are_given_as_they_are():
    assert list(JsonStream(pieces("\ufeff{}\n\n ä \nlast", 3)).lines()) == ["{}", "", " ä ", "last"]
    with pytest.raises(UsageError, match="line 2: this is not UTF-8"):
        list(JsonStream([b"{}\n\xff"]).lines())
