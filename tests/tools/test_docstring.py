"""Docstrings of three styles say the same."""

import pytest

from loom.tools.function import read_docstring

GOOGLE = """Find orders.

    Looks at the last year
    only.

    Args:
        query: what to look for,
            in plain words.
        limit (int): how many: at the most.

    Returns:
        name: not a parameter.
    """
REST = """Find orders.

    Looks at the last year
    only.

    :param query: what to look for,
        in plain words.
    :param int limit: how many: at the most.
    :returns: name: not a parameter.
    """
NUMPY = """Find orders.

    Looks at the last year
    only.

    Parameters
    ----------
    query : str
        what to look for,
        in plain words.
    limit : int, optional
        how many: at the most.

    Returns
    -------
    name : str
        not a parameter.
    """


@pytest.mark.parametrize("text", [GOOGLE, REST, NUMPY], ids=["google", "rest", "numpy"])
def test_the_summary_and_each_parameter(text):
    summary, arguments = read_docstring(text)
    assert summary == "Find orders.\n\nLooks at the last year only."
    assert arguments == {"query": "what to look for, in plain words.", "limit": "how many: at the most."}


@pytest.mark.parametrize("text", [None, "", "   "])
def test_no_docstring_says_nothing(text):
    assert read_docstring(text) == ("", {})


def test_a_colon_in_the_text_does_not_begin_a_section():
    summary, arguments = read_docstring("Say: hello.\n\nNote that this: is text.")
    assert summary == "Say: hello.\n\nNote that this: is text."
    assert arguments == {}


def test_a_docstring_that_begins_with_its_parameters_has_no_summary():
    assert read_docstring(":param x: the x") == ("", {"x": "the x"})
