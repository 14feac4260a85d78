"""Skills: instructions for one kind of task, and matching a message to the skills it needs."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast

from loom.context.entry import check_encodable
from loom.context.file_entry import split_frontmatter
from loom.context.prompt import Fragment
from loom.core.checks import MAX_SKILL, join_surrogates
from loom.core.message import ToolCallPart
from loom.errors import UsageError
from loom.text.fence import fenced, one_line
from loom.text.words import query_terms, tokens

# Trigger patterns: the regular expressions of skills, matched in linear time whatever their author wrote.
#
# A skill file may come with a project, and a pattern such as `(a+)+$` would stop the agent in Python's `re`, which
# tries every way to match. Rust's `regex` never goes back. pydantic, on which Loom depends anyway, brings it for all
# platforms.

MAX_PATTERN = 500
MAX_SIZE = 1_000
"""Characters of a pattern when its counted repeats are written out. A search takes this times the text in steps, so
without a bound 40 characters such as `((a{99}){99}){99}` would take minutes."""

_COUNT = re.compile(r"\{(\d++)(?:,(\d*+))?\}")
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|\((?:\?:)?|\{\d++(?:,\d*+)?\}|.", re.DOTALL)


class TriggerPattern:
    """A compiled pattern; upper and lower case are alike.

    The syntax is Python's, without lookaround, back references, named groups and flags. `$` is the very end of a text.
    """

    def __init__(self, pattern: str) -> None:
        from pydantic_core import SchemaError, SchemaValidator  # noqa: PLC0415  (only skills with patterns need it)

        if len(pattern) > MAX_PATTERN:
            raise UsageError(f"the trigger pattern has {len(pattern):,} characters; at most {MAX_PATTERN} are allowed")
        if re.search(r"\(\?(?!:)", pattern):
            raise UsageError(f"the trigger pattern {pattern!r} has lookaround, a named group or flags; leave them out")
        if _written_out(pattern) > MAX_SIZE:
            raise UsageError(f"the trigger pattern {pattern!r} repeats more than {MAX_SIZE:,} characters; repeat less")
        try:
            self._validator = SchemaValidator({"type": "str", "pattern": f"(?i){join_surrogates(pattern)}"})
        except SchemaError as error:
            why = str(error).rpartition("error: ")[2].rpartition("SchemaError: ")[2]
            raise UsageError(f"the trigger pattern {pattern!r} cannot be used: {why}") from error

    def search(self, text: str) -> bool:
        """Whether the pattern occurs anywhere in a text."""
        return self._validator.isinstance_python(join_surrogates(text))


def _written_out(pattern: str) -> int:
    """How many characters a pattern has when its counted repeats are written out."""
    sizes, last = [0], 0  # of the open groups, the outermost first; and of what a repeat would repeat
    for piece in _PIECE.findall(pattern):
        if piece in ("(", "(?:"):
            sizes.append(0)
        elif piece == ")" and len(sizes) > 1:
            last = max(1, sizes.pop())
            sizes[-1] += last
        elif count := _COUNT.fullmatch(piece):
            times = int(count[2] or count[1])
            sizes[-1] += last * (times - 1)
            last *= times
        elif piece not in ("*", "+", "?"):
            last = 1
            sizes[-1] += 1
    return sum(sizes)


MAX_NAME = 64
MAX_DESCRIPTION = 1_024
MAX_DEPTH = 6
MAX_FOLDERS = 2_000
"""How many folders below the one given are looked at."""

_NAME = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_SKIPPED = {"node_modules", "__pycache__"}
_TOOL = re.compile(r"[^\s,()]+(?:\([^()]*\))?")
_WORD_START = re.compile(r"(?<=[a-z])(?=[A-Z])|-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """Instructions for one kind of task."""

    name: str
    description: str
    """What it does and when to use it; all skills are listed with it."""
    content: str
    """The instructions; the model sees them once the skill is used."""
    triggers: tuple[str, ...] = ()
    """Words or phrases of the user that activate it; patterns of `re` are regular expressions without being told so."""
    trigger_is_regex: bool = False
    """The triggers are regular expressions; then nothing else that a user says activates it."""
    allowed_tools: tuple[str, ...] | None = None
    """The only tools that may run while it is active; None sets no limit, an empty tuple allows none."""
    user_only: bool = False
    """Only the user can activate it, as `/name` or by its regular expressions; it is not listed to the model."""
    path: Path | None = None
    """The file it was read from; the files it names are relative to its folder."""

    def __post_init__(self) -> None:
        self._read_triggers()
        if self.allowed_tools is not None:
            object.__setattr__(self, "allowed_tools", _values(self.allowed_tools))
        if len(self.name) > MAX_NAME or not _NAME.fullmatch(self.name) or self.name != self.name.lower():
            raise _BadField(
                "name",
                f"the name {self.name[:MAX_NAME]!r} is not a skill name; use at most {MAX_NAME} lower-case letters "
                "and digits, with single hyphens between them",
            )
        size = len(self.description)
        if not self.description.strip() or size > MAX_DESCRIPTION:
            what = f"has {size:,} characters" if size > MAX_DESCRIPTION else "is empty"
            advice = f"say in at most {MAX_DESCRIPTION:,} characters what the skill does and when to use it"
            raise _BadField("description", f"the description {what}; {advice}")
        if not self.content.strip():
            raise _BadField("content", "it has no instructions; write them below the frontmatter")
        if len(self.content) > MAX_SKILL:
            what = f"it has {len(self.content):,} characters of instructions"
            raise _BadField("content", f"{what}; at most {MAX_SKILL:,} are taken: move details to files that it names")
        check_encodable(self.description + self.content)
        for trigger in self.triggers:
            if not trigger.strip():
                raise _BadField("trigger", "a trigger is empty; give a word or a phrase")
            if self.trigger_is_regex:
                try:
                    TriggerPattern(trigger)
                except UsageError as error:
                    raise _BadField("trigger", str(error)) from error
        for tool in self.allowed_tools or ():
            if not _TOOL.fullmatch(tool):
                raise _BadField("allowed_tools", f"allowed tool {tool!r} is not a name such as Read or Bash(git:*)")

    def _read_triggers(self) -> None:
        given: Any = self.triggers
        found = cast("tuple[Any, ...]", (given,) if isinstance(given, str | re.Pattern) else tuple(given))
        is_compiled = [isinstance(one, re.Pattern) for one in found]
        if any(is_compiled) and not self.trigger_is_regex:
            if not all(is_compiled):
                raise _BadField("trigger", "some triggers are patterns and others are words; make two skills of it")
            object.__setattr__(self, "trigger_is_regex", True)
        object.__setattr__(self, "triggers", tuple(getattr(one, "pattern", one) for one in found))


def _values(given: Iterable[str]) -> tuple[str, ...]:
    """One text or many, as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


class _BadField(UsageError):
    """A skill that cannot be, and the field to look at."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


# -- reading -------------------------------------------------------------------------------------------------


def load_skills(*folders: str | os.PathLike[str], problems: list[str] | None = None) -> tuple[Skill, ...]:
    """The skills of some folders, sorted by name: every `SKILL.md` and `*.skill.md` below them.

    A skill of an earlier folder goes before one of the same name in a later folder, so give the project's before
    the user's. Two of one name in one folder are a problem. Load only folders that you trust: a skill instructs.

    Args:
        folders: where to look; a file is taken by itself.
        problems: what is wrong with a file is added here and the file is left out. Without it, a problem raises
            a UsageError that names the files and lines of all of them.
    """
    found: dict[str, Skill] = {}
    wrong: list[str] = []
    for folder in folders:
        here: dict[str, Skill] = {}
        for path in _skill_files(Path(folder), wrong):
            try:
                skill = _load_skill(path)
            except UsageError as error:
                wrong.append(str(error))
                continue
            if skill.name in here:
                wrong.append(f"{path}: {here[skill.name].path} has the name {skill.name!r} too; rename one of them")
            here.setdefault(skill.name, skill)
        found = here | found
    if wrong and problems is None:
        raise UsageError("\n".join(wrong))
    if problems is not None:
        problems += wrong
    return tuple(found[name] for name in sorted(found))


def _load_skill(file: Path) -> Skill:
    """The skill of one file; a UsageError names the file, and the line where there is one."""
    text = _read(file)
    metadata, body, problem = split_frontmatter(text)
    if problem:
        what = problem.removesuffix("; it is shown as text")
        advice = "put a value that holds a colon in quotes" if "YAML" in what else "shorten it"
        raise UsageError(f"{file}:{_yaml_line(what)}: {what}; {advice}")
    if not metadata:
        raise UsageError(f"{file}:1: it has no frontmatter; start it with ---, name:, description: and ---")
    fields = _Fields(file, text, metadata)
    name = fields.text("name") or (file.parent.name if file.name == "SKILL.md" else file.name.removesuffix(".skill.md"))
    try:
        return Skill(
            name=name,
            description=fields.text("description"),
            content=body.strip("\n").rstrip(),
            triggers=(*fields.texts("trigger"), *fields.texts("triggers")),
            trigger_is_regex=fields.flag("trigger_is_regex"),
            allowed_tools=fields.tools("allowed_tools"),
            user_only=fields.flag("disable_model_invocation"),
            path=file.absolute(),
        )
    except _BadField as error:
        raise fields.wrong(error.field, str(error)) from error


def _skill_files(root: Path, wrong: list[str]) -> Iterator[Path]:
    """The skill files below a folder, sorted; what leads out of it is a problem and is left out."""
    if root.is_file():
        yield root
        return
    if not root.is_dir():
        wrong.append(f"{root}: there is no such folder")
        return
    real = os.path.realpath(root)

    def unreadable(error: OSError) -> None:
        wrong.append(f"{error.filename}: it cannot be read: {error.strerror}")

    for seen, (folder, folders, files) in enumerate(os.walk(root, onerror=unreadable)):
        if seen == MAX_FOLDERS:
            wrong.append(f"{root}: it has more than {MAX_FOLDERS:,} folders; give the folder that holds the skills")
            return
        here = Path(folder)
        own = sorted(f for f in files if f == "SKILL.md" or f.endswith(".skill.md"))
        links = [d for d in folders if (here / d).is_symlink() and (here / d / "SKILL.md").exists()]
        for path in [here / name for name in own] + [here / name for name in sorted(links)]:
            if not Path(os.path.realpath(path)).is_relative_to(real):
                wrong.append(f"{path}: it links out of {root}; give the folder it links to instead")
            elif path.name in own:
                yield path
        deep = len(here.relative_to(root).parts) >= MAX_DEPTH
        # What lies below a SKILL.md belongs to that skill.
        may_hold = [d for d in folders if not d.startswith(".") and d not in _SKIPPED]
        folders[:] = [] if "SKILL.md" in files or deep else sorted(may_hold)


def _read(file: Path) -> str:
    if not file.is_file():
        raise UsageError(f"{file}: it is not a file")
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_SKILL + 1)
    except OSError as error:
        raise UsageError(f"{file}: it cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_SKILL:
        raise UsageError(f"{file}: it is longer than {MAX_SKILL:,} bytes; move details to files that the skill names")
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}:{line}: it is not UTF-8: byte 0x{raw[error.start]:02x}") from error


def _yaml_line(problem: str) -> int:
    """The line of the file that a YAML problem names; its own count starts below the dashes."""
    named = re.findall(r"line (\d+), column \d+", problem)
    return int(named[-1]) + 1 if named else 1


class _Fields:
    """The frontmatter of one file: `allowed-tools`, `allowedTools` and `allowed_tools` are one field."""

    def __init__(self, file: Path, text: str, metadata: dict[str, Any]) -> None:
        self._file, self._text = file, text
        self._values: dict[str, Any] = {}
        self._spelled: dict[str, str] = {}
        for key, value in metadata.items():
            name = _WORD_START.sub("_", key).lower()
            if name in self._values:
                raise self.wrong(name, f"{self._spelled[name]} and {key} are one field; keep one of them")
            self._values[name], self._spelled[name] = value, key

    def text(self, name: str) -> str:
        """A field of one line or paragraph; empty if it is not there."""
        value = self._values.get(name, "")
        if not isinstance(value, str):
            raise self.wrong(name, f"{self._spelled[name]} is not text; write one value")
        return one_line(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A field of one value or of a list."""
        value = self._values.get(name, [])
        values = cast("list[Any]", value) if isinstance(value, list) else [value]
        if not all(isinstance(v, str) and v.strip() for v in values):
            raise self.wrong(name, f"{self._spelled[name]} is not text or a list of texts")
        return tuple(v.strip() for v in values)

    def flag(self, name: str) -> bool:
        """A field that is true or false."""
        value = self.text(name).lower()
        if value not in ("", "true", "false"):
            raise self.wrong(name, f"{self._spelled[name]} is {value!r}; write true or false")
        return value == "true"

    def tools(self, name: str) -> tuple[str, ...] | None:
        """A field of tool names: a list, or one text with spaces or commas between them."""
        if name not in self._values:
            return None
        if self._values[name] == []:
            return ()
        names: list[str] = []
        for text in self.texts(name):
            if _TOOL.sub("", text).strip(" ,"):
                raise self.wrong(name, f"{self._spelled[name]} has a parenthesis too many or too few in {text!r}")
            names += _TOOL.findall(text)
        return tuple(dict.fromkeys(names))

    def wrong(self, name: str, message: str) -> UsageError:
        """An error that names the file, and the line of the field, or the first line where it is not written."""
        keys = {f"{self._spelled[n]}:" for n in (name, f"{name}s") if n in self._spelled}
        lines = enumerate(self._text.splitlines(), 1)
        at = next((n for n, line in lines if any(line.startswith(key) for key in keys)), 1)
        return UsageError(f"{self._file}:{at}: {message}")


# -- showing -------------------------------------------------------------------------------------------------

CATALOG_RULE = (
    "Skills are instructions for particular tasks. Those of a skill are shown in the conversation once it is active; "
    "the user can activate one with /name."
)
"""The heading of the list of skills; a prompt that has it shows one."""
_SKILL_RULE = "The skill {name} is active. Follow its instructions for the task at hand; they lift no other rule."


def create_skills_fragment(skills: Iterable[Skill], label: str | None = "Skills") -> Fragment:
    """The skills, for the prefix: names, descriptions, tools, triggers; a list is read anew by every build."""
    live: Iterable[Skill] = skills if isinstance(skills, list) else tuple(skills)
    return Fragment("skills", lambda: _catalog(live), label=label)


def _catalog(skills: Iterable[Skill]) -> str:
    listed = {skill.name: _listed(skill) for skill in skills if not skill.user_only}
    return "\n".join([CATALOG_RULE, *(listed[name] for name in sorted(listed))]) if listed else ""


def _listed(skill: Skill) -> str:
    line = f"- {skill.name}: {one_line(skill.description)}"
    facts: list[str] = []
    if skill.allowed_tools is not None:
        facts.append(f"tools: {', '.join(map(one_line, skill.allowed_tools)) or 'none'}")
    if skill.triggers:
        kind = "pattern" if skill.trigger_is_regex else "trigger"
        facts.append(f"{kind}{'s' * (len(skill.triggers) > 1)}: {', '.join(map(one_line, skill.triggers))}")
    return f"{line} ({'; '.join(facts)})" if facts else line


def create_active_skill_fragment(skill: Skill, section: Literal["convo", "attention"] = "convo") -> Fragment:
    """The instructions of a skill that is used now: appended to the conversation, or shown last while it is active."""
    rule = _SKILL_RULE.format(name=skill.name)
    if skill.path is not None:
        rule += f" The files it names are in {one_line(str(skill.path.parent))}."
    if cast("str", section) not in ("convo", "attention"):
        raise UsageError(f"section={section!r} would put a skill into the cached prefix; use 'convo' or 'attention'")
    return Fragment("skills", fenced("skill", skill.content, rule), label=f"Skill {skill.name}", section=section)


# Skill matching: the skills a message asks for, and the tools allowed while they are active.

MAX_MESSAGE = 4_000
"""Characters of a message that are looked at: the request is at its beginning."""
MIN_SHARED = 3
"""Content words that a message must share with a description to match by it."""


@dataclass(frozen=True, slots=True)
class SkillMatch:
    """A skill that a message asks for."""

    skill: Skill
    confidence: float
    """1 is certain: the user wrote its name as a command."""
    why: str


class SkillMatcher:
    """Finds the skills that a message of the user asks for.

    In order of confidence: a command such as `/commit` (1.0 where the message starts with it, else 0.95), a
    message that is nothing but a trigger (1.0), a message that starts with one (0.9), a trigger anywhere as a
    word of its own (0.8), a regular expression (0.8), and a description that shares most of the content words of
    the message (at most 0.6). Where a skill has regular expressions, they alone decide: neither its name as a command
    nor its description activates it.
    """

    def __init__(self, skills: Iterable[Skill], *, min_overlap: float | None = 0.6) -> None:
        """Prepare the matching.

        Args:
            skills: the skills; a name may come once.
            min_overlap: the share of the content words of a message that a description must have; None does not
                look at descriptions.
        """
        if min_overlap is not None and not 0 < min_overlap <= 1:
            raise UsageError(f"min_overlap={min_overlap!r} is not a share; give a number above 0 and up to 1, or None")
        self._skills = sorted(skills, key=lambda skill: skill.name)
        repeated = [name for name, count in Counter(s.name for s in self._skills).items() if count > 1]
        if repeated:
            raise UsageError(f"two skills have the name {repeated[0]!r}; a command could mean either: rename one")
        self._min_overlap = min_overlap
        self._rules = {skill.name: _Rules(skill) for skill in self._skills}
        seen = Counter(term for rules in self._rules.values() for term in rules.terms)
        # A word that several skills use tells none of them apart.
        self._terms = {name: {t for t in r.terms if seen[t] == 1} for name, r in self._rules.items()}

    def match(self, message: str) -> list[SkillMatch]:
        """Every skill that a message asks for, the surest first; of equal ones by name."""
        text = message[:MAX_MESSAGE].strip()
        wanted = frozenset(query_terms(text))
        found: list[SkillMatch] = []
        for skill in self._skills:
            confidence, why = self._rules[skill.name].match(text)
            if not why and not skill.user_only and not _has_patterns(skill):
                confidence, why = self._overlap(skill, wanted)
            if why:
                found.append(SkillMatch(skill, confidence, why))
        return sorted(found, key=lambda match: -match.confidence)

    def best(self, message: str) -> SkillMatch | None:
        """The surest match, or None."""
        return next(iter(self.match(message)), None)

    def _overlap(self, skill: Skill, wanted: frozenset[str]) -> tuple[float, str]:
        if self._min_overlap is None or not wanted:
            return 0.0, ""
        shared = sorted(wanted & self._terms[skill.name])
        share = len(shared) / len(wanted)
        if len(shared) < MIN_SHARED or share < self._min_overlap:
            return 0.0, ""
        return round(0.6 * share, 3), f"its description shares {', '.join(shared)} with the message"


class _Rules:
    """The compiled activation rules of one skill."""

    def __init__(self, skill: Skill) -> None:
        phrases = () if skill.trigger_is_regex else skill.triggers
        self.terms = frozenset(query_terms(skill.description))
        commands = [] if _has_patterns(skill) else [skill.name, *(t for t in phrases if not re.search(r"\s", t))]
        self._commands = [(c, re.compile(rf"(?<!\S)/{re.escape(c)}(?![\w/-]|\.\w)", re.IGNORECASE)) for c in commands]
        self._phrases = () if skill.user_only else tuple((t, _phrase(t)) for t in phrases)
        regex = skill.triggers if skill.trigger_is_regex else ()
        self._patterns = [(trigger, TriggerPattern(trigger)) for trigger in regex]

    def match(self, text: str) -> tuple[float, str]:
        """How sure it is that the user names this skill, and how; an empty reason means no match."""
        for command, pattern in self._commands:
            if found := pattern.search(text):
                return (0.95 if found.start() else 1.0), f"the message says /{command}"
        sure = 0.0, ""
        for phrase, pattern in self._phrases:
            if found := pattern.search(text):
                share = 1.0 if found[0] == text else 0.8 if found.start() else 0.9
                sure = max(sure, (share, f"the message says {phrase!r}"), key=lambda rule: rule[0])
        if sure[1]:
            return sure
        hit = next((trigger for trigger, pattern in self._patterns if pattern.search(text)), None)
        return (0.8, f"the message fits the pattern {hit!r}") if hit is not None else (0.0, "")


def _has_patterns(skill: Skill) -> bool:
    return skill.trigger_is_regex and bool(skill.triggers)


def _phrase(trigger: str) -> re.Pattern[str]:
    """A trigger as words of their own, whatever the case and the spaces between them."""
    words = r"\s+".join(map(re.escape, trigger.split()))
    first, last = trigger.strip()[0], trigger.strip()[-1]
    before = "" if _is_unspaced(first) else r"(?<!\w)"
    after = "" if _is_unspaced(last) else r"(?!\w)"
    return re.compile(f"{before}{words}{after}", re.IGNORECASE)


def _is_unspaced(char: str) -> bool:
    """Whether a character is of a script without spaces: its runs are cut into pairs, so three make two."""
    return len(tokens(char * 3)) > 1


# -- tools ---------------------------------------------------------------------------------------------------


def tool_refusal(call: ToolCallPart, active: Sequence[Skill]) -> str | None:
    """Why a tool may not run while these skills are active, as a text for the model; None if it may.

    The tools that may run are those that any active skill names. A skill that names none neither allows nor
    forbids. The list of tools in the request stays as it is: changing it would cost the whole prefix.
    `Bash(git:*)` allows a call whose every text argument is `git` or starts with `git `; any other pattern in
    parentheses has to fit every text argument, `*` standing for anything. What joins shell commands or climbs out
    of a folder fits no pattern. This limits a model that means well; it is not a sandbox.
    """
    limits = [skill for skill in active if skill.allowed_tools is not None]
    rules = [rule for skill in limits for rule in skill.allowed_tools or ()]
    if not limits or any(_allows(rule, call) for rule in rules):
        return None
    names = ", ".join(skill.name for skill in limits)
    allowed = f"These are allowed: {', '.join(dict.fromkeys(rules))}" if rules else "No tool is allowed"
    return f"The tool {call.name} was not run: the active skill {names} does not allow this call. {allowed}."


_ESCAPES = re.compile(r"[;&|<>`\n\r]|\$[({]|(?:^|[/\\])\.\.(?:$|[/\\])")
"""What lets one shell command start or feed another, and what leads out of a folder."""


def _allows(rule: str, call: ToolCallPart) -> bool:
    name, _, pattern = rule.partition("(")
    if name != call.name:
        return False
    pattern = pattern.removesuffix(")")
    texts = _texts(call.arguments)
    return not pattern or (bool(texts) and all(_fits(text, pattern) for text in texts))


def _fits(text: str, pattern: str) -> bool:
    if _ESCAPES.search(text):
        return False
    if pattern.endswith(":*"):
        start = pattern.removesuffix(":*")
        return text == start or text.startswith(f"{start} ")
    return fnmatchcase(text, pattern)


def _texts(value: Any) -> list[str]:
    """Every text in an argument, however deep: leaving one out would let it pass unseen."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in cast("dict[str, Any]", value).values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in cast("list[Any]", value) for text in _texts(item)]
    return []


def checked_skills(given: Iterable[Skill]) -> tuple[Skill, ...]:
    """The skills of an agent or a session; refuses the path of a folder, which has to be loaded first."""
    if isinstance(given, str | os.PathLike):
        raise UsageError(f"skills={str(given)!r} is a path; write skills=load_skills({str(given)!r})")
    skills = tuple(given)
    for one in skills:
        if not isinstance(one, Skill):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{one!r:.60} is not a skill; give Skill(...), or load_skills(FOLDER)")
    return skills
