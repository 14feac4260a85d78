"""What the command line shows, as plain text of 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from loom.cli.cache import findings_view, steps_table, window_bar
from loom.context.cache.simulate import Finding, Simulation, Step
from loom.core.window import Block, BlockOrigin, Level, RequestBlocks


def shown(view: RenderableType, width: int = 80) -> list[str]:
    """The lines a console without colours shows, and no line wider than it."""
    file = io.StringIO()
    Console(file=file, width=width, no_color=True, force_terminal=False).print(view)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    return lines


def block(section: str, tokens: int, marker: str | None = None, *, level: Level = "messages") -> Block:
    origin = None if level == "tools" else BlockOrigin(section, "e1", "main")
    return Block(level, "user", "text", f"{section} {tokens}", tokens, "p", marker, origin)


WINDOW = RequestBlocks(
    "anthropic",
    "claude-sonnet-5",
    (
        block("tools", 1_000, level="tools"),
        block("tools", 1_000, "1h", level="tools"),
        block("foundation", 2_000, "1h", level="system"),
        block("convo", 3_000),
        block("convo", 1_000, "5m"),
        block("attention", 10),
    ),
)


def row(lines: list[str], first: str) -> list[str]:
    return next(line.split() for line in lines if line.split()[:1] == [first])


def test_a_window_is_a_bar_of_its_sections() -> None:
    lines = shown(window_bar(WINDOW, read_tokens=6_000))
    assert lines[0] == "claude-sonnet-5 (anthropic): 8,010 tokens, 74.9% read from the cache"
    assert lines[1] == "╷tools" + " " * 14 + "╷foundation" + " " * 9 + "╷convo" + " " * 33 + "╷"
    assert lines[2] == "█" * 59 + "░" * 21
    assert lines[3] == " " * 19 + "▲1h" + " " * 17 + "▲1h" + " " * 34 + "5m▲"
    assert lines[4] == ""


def test_the_legend_says_what_the_bar_shows() -> None:
    lines = shown(window_bar(WINDOW, read_tokens=6_000))
    assert lines[5].split() == ["section", "blocks", "tokens", "share", "cached", "markers"]
    assert row(lines, "tools") == ["tools", "2", "2,000", "25.0%", "100.0%", "1h"]
    assert row(lines, "foundation") == ["foundation", "1", "2,000", "25.0%", "100.0%", "1h"]
    assert row(lines, "convo") == ["convo", "2", "4,000", "49.9%", "50.0%", "5m"]
    assert row(lines, "attention") == ["attention", "1", "10", "0.1%", "0.0%"]
    assert row(lines, "all") == ["all", "6", "8,010", "100.0%", "74.9%", "2", "x", "1h,", "5m"]
    assert lines[-1] == "█ read from the cache  ░ not  ▲ cache marker"


def test_a_window_whose_reads_are_not_known_shows_its_sections_alone() -> None:
    lines = shown(window_bar(replace(WINDOW, automatic="5m")))
    assert lines[0] == "claude-sonnet-5 (anthropic): 8,010 tokens"
    assert lines[2] == "▓" * 20 + "▒" * 20 + "▓" * 39 + "▒"
    assert lines[5].split() == ["section", "blocks", "tokens", "share", "markers"]
    assert lines[-1] == "▲ cache marker  breakpoint placed by the provider: 5m"


def test_blocks_of_no_context_are_shown_by_level() -> None:
    levels: tuple[Level, ...] = ("tools", "system", "messages")
    prompt = RequestBlocks("openai", "gpt-5.6", tuple(Block(level, "user", "text", level, 100) for level in levels))
    lines = shown(window_bar(prompt, width=60))
    assert [name for name in ("tools", "system", "messages") if row(lines, name)[2] == "100"] == list(levels)
    assert lines[2] == "▓" * 20 + "▒" * 20 + "▓" * 20
    assert "▲" not in "".join(lines)


def test_markers_that_stand_close_keep_their_ticks() -> None:
    blocks = (*[block("convo", 100, "5m")] * 79, block("convo", 100, "1h"))
    lines = shown(window_bar(RequestBlocks("anthropic", "m", blocks)))
    assert lines[3] == "▲" * 80
    assert lines[7].endswith("79 x 5m, 1h")


@pytest.mark.parametrize("read", [0, 5, 10**9, -1])
def test_reads_outside_the_prompt_do_not_leave_the_bar(read: int) -> None:
    bar = shown(window_bar(WINDOW, read_tokens=read))[2]
    assert len(bar) == 80
    assert bar == ("█" if read > 8_010 else "░") * 80


def test_an_empty_prompt_has_an_empty_bar() -> None:
    lines = shown(window_bar(RequestBlocks("anthropic", "m", ()), read_tokens=0))
    assert lines[0] == "m (anthropic): 0 tokens, 0.0% read from the cache"
    assert row(lines, "all") == ["all", "0", "0", "0.0%", "0.0%"]


def test_a_narrow_console_gets_a_narrow_bar() -> None:
    assert shown(window_bar(WINDOW, read_tokens=8_010), width=60)[2] == "█" * 60


def test_a_console_of_plain_signs_gets_plain_signs() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    console = Console(file=file, width=80)
    console.print(window_bar(WINDOW, read_tokens=6_000))
    console.print(steps_table(Simulation((STEPS[1],))))
    text = raw.getvalue().decode("ascii").splitlines()
    assert text[2] == "#" * 59 + "." * 21
    assert any(line.endswith("####..") for line in text)


STEPS = (
    Step(read=0, write=12_000, uncached=500, cost=15_500.0, at_block=0),
    Step(read=12_000, write=2_000, uncached=1_000, cost=4_700.0, at_block=3),
)


def test_steps_have_a_row_each_and_a_sum() -> None:
    lines = shown(steps_table(Simulation(STEPS)))
    assert lines[0] == "read share ▁▇"
    assert lines[1].split() == ["#", "tokens", "read", "write", "uncached", "cost", "share"]
    assert row(lines, "1") == ["1", "12,500", "0", "12,000", "500", "15,500", "0.0%", "░░░░░░"]
    assert row(lines, "2") == ["2", "15,000", "12,000", "2,000", "1,000", "4,700", "80.0%", "████░░"]
    assert row(lines, "all") == ["all", "27,500", "12,000", "14,000", "1,500", "20,200", "43.6%"]
    assert "20,200 for 27,500 tokens, 73.5% of" in " ".join(lines[-2:])


def test_a_narrow_terminal_has_fewer_columns_and_whole_numbers() -> None:
    lines = shown(steps_table(Simulation(STEPS)), width=40)
    assert lines[1].split() == ["#", "tokens", "read", "write", "share"]
    assert row(lines, "2") == ["2", "15,000", "12,000", "2,000", "80.0%"]
    assert row(lines, "all") == ["all", "27,500", "12,000", "14,000", "43.6%"]


def test_of_many_steps_the_middle_is_left_out() -> None:
    big = replace(STEPS[1], read=900_000, write=100_000, uncached=0)
    lines = shown(steps_table(Simulation((STEPS[0], *[big] * 149)), rows=10))
    numbers = [line.split()[0] for line in lines[3:14]]
    assert numbers == ["1", "2", "3", "4", "5", "⋮", "146", "147", "148", "149", "150"]
    assert row(lines, "⋮") == ["⋮", "140", "more"]
    assert row(lines, "all")[1:3] == ["149,012,500", "134,100,000"]
    assert len(lines[0].split()[-1]) == 50
    assert "⋮" not in "".join(shown(steps_table(Simulation((big,) * 10), rows=10)))


def test_no_steps_make_an_empty_table() -> None:
    assert row(shown(steps_table(Simulation(()))), "all") == ["all", "0", "0", "0", "0", "0", "0.0%"]


FINDING = Finding(
    cause="automatic_marker_on_volatile",
    where="messages[3].content[0], entry e1 in attention of context 'main'",
    requests=1_190,
    message="the provider's own breakpoint fell on a last block that the next request does not repeat",
    advice="mark the last block that stays",
    saving=0.4321,
    fix="explicit_tail",
)


def test_findings_say_where_why_and_what_to_do() -> None:
    lines = shown(findings_view([FINDING, replace(FINDING, cause="below_minimum", fix=None, requests=1)]))
    assert lines[0] == "1. automatic marker on volatile (saves 43.2% of the cost)"
    assert lines[1] == "   where    messages[3].content[0], entry e1 in attention of context 'main'"
    assert lines[2] == "   seen in  1,190 requests"
    assert lines[3] == "   why      the provider's own breakpoint fell on a last block that the next"
    assert lines[4] == "            request does not repeat"
    assert lines[5] == "   do       mark the last block that stays [explicit_tail]"
    assert lines[7] == "2. below minimum (no change of the requests removes it)"
    assert lines[9] == "   seen in  1 request"
    assert lines[12] == "   do       mark the last block that stays"


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    assert shown(findings_view([replace(FINDING, where="[bold]x[/bold]")]))[1] == "   where    [bold]x[/bold]"


def test_no_findings_are_said_in_words() -> None:
    assert shown(findings_view([])) == ["No cause of missed cache reads was found."]
