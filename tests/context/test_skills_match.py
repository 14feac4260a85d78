"""Which skills a message activates, and which tools may run then."""

import pytest

from loom import Skill, SkillMatcher, ToolCallPart, tool_refusal
from loom.errors import UsageError


def skill(name, description=None, **fields):
    return Skill(**{"name": name, "description": description or f"About {name}.", "content": "Do it.", **fields})


COMMIT = skill("commit", "Write a git commit message from staged changes.", triggers=("commit", "save my work"))
DEPLOY = skill(
    "deploy", "Deploy a service.", triggers=(r"\b(deploy|ship)\b.*\b(prod|staging)\b",), trigger_is_regex=True
)
PDF = skill("pdf-forms", "Extract tables and text from PDF documents, fill forms, merge files.")
RELEASE = skill("release", "Publish a release.", triggers=("release",), user_only=True)
ALL = (COMMIT, DEPLOY, PDF, RELEASE)


def found(message, skills=ALL, **options):
    return [(m.skill.name, m.confidence) for m in SkillMatcher(skills, **options).match(message)]


def test_the_matcher_defect_a_trigger_anywhere_in_the_message_activates():
    """The seed's matcher found `commit ...` and never `please commit`."""
    assert found("please commit") == [("commit", 0.8)]


@pytest.mark.parametrize(
    ("message", "confidence"),
    [
        ("/commit", 1.0),
        ("/Commit now", 1.0),
        ("do it /commit", 0.95),
        ("use /commit.", 0.95),
        ("commit", 1.0),
        ("  Commit\n", 1.0),
        ("commit all of it", 0.9),
        ("could you commit, then push?", 0.8),
        ("please save  my\nwork", 0.8),
        ("(commit)", 0.8),
    ],
)
def test_what_names_a_skill(message, confidence):
    assert found(message) == [("commit", confidence)]


@pytest.mark.parametrize(
    "message",
    ["", " ", "committed", "recommit this", "committee", "commit_all", "uncommit", "save my workbook", "what is new?"],
)
def test_a_part_of_a_word_does_not_trigger(message):
    assert found(message) == []


@pytest.mark.parametrize("message", ["/commit/all", "/commit.py", "src/commit-hook", "/commits", "a/deploy"])
def test_a_path_is_not_a_command(message):
    assert not [1 for _, confidence in found(message) if confidence > 0.9]


def test_triggers_of_other_scripts_and_with_signs():
    matcher = SkillMatcher([skill("save", triggers=("コミット",)), skill("cpp", triggers=("c++",))])
    assert [m.skill.name for m in matcher.match("変更をコミットしてください")] == ["save"]
    assert [m.skill.name for m in matcher.match("rewrite it in C++ please")] == ["cpp"]
    assert matcher.match("plan c is best") == []


def test_regular_expressions():
    assert found("please deploy it to prod") == [("deploy", 0.8)]
    assert found("SHIP the api to Staging!") == [("deploy", 0.8)]
    assert found("deploy it") == []


STRICT = skill(
    "deploy", "Deploy the service now.", triggers=(r"^/deploy (staging|production)$",), trigger_is_regex=True
)


@pytest.mark.parametrize("user_only", [True, False])
def test_where_a_skill_has_a_regular_expression_nothing_else_activates_it(user_only):
    strict = skill("deploy", STRICT.description, triggers=STRICT.triggers, trigger_is_regex=True, user_only=user_only)
    for message in ("/deploy development", "/deploy", "deploy", "please /deploy staging", "deploy the service now"):
        assert found(message, [strict]) == []
    assert found("/deploy staging", [strict]) == [("deploy", 0.8)]
    assert found("/Deploy production", [strict]) == [("deploy", 0.8)]


def test_what_only_the_user_may_call_is_activated_by_a_command_alone():
    assert found("please release it") == []
    assert found("/release it") == [("release", 1.0)]


def test_a_description_matches_only_when_most_of_the_message_is_about_it():
    assert found("merge the PDF documents, fill the forms") == [("pdf-forms", 0.6)]
    assert found("extract the tables from these documents quickly") == [("pdf-forms", 0.45)]
    assert found("merge the PDF documents, fill the forms", min_overlap=None) == []


@pytest.mark.parametrize(
    "message",
    [
        "fill me in",
        "merge the PDF documents, then tell me how the weather will be for the garden party of my parents tomorrow",
        "what is in the text file?",
        "merge the branches and run all tests again",
        "the text of the letter to my landlord should sound friendly",
        "write a poem about the sea",
        "is there a message from Anna?",
        "which service is the fastest one for images?",
    ],
)
def test_a_few_shared_words_are_no_match(message):
    assert found(message) == []


def test_words_that_several_descriptions_use_tell_nothing():
    twins = [skill("a", "Extract tables from PDF documents."), skill("b", "Extract tables from PDF documents, too.")]
    assert found("extract tables from PDF documents", twins) == []


def test_several_skills_the_surest_first_each_with_a_reason():
    matches = SkillMatcher(ALL).match("/commit and then deploy to prod")
    assert [(m.skill.name, m.why) for m in matches] == [
        ("commit", "the message says /commit"),
        ("deploy", f"the message fits the pattern {DEPLOY.triggers[0]!r}"),
    ]
    assert SkillMatcher(ALL).best("/commit and then deploy to prod") == matches[0]
    assert SkillMatcher(ALL).best("hello") is None


def test_what_cannot_work_is_refused():
    with pytest.raises(UsageError, match="two skills have the name 'commit'"):
        SkillMatcher([COMMIT, COMMIT])
    for share in (0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="is not a share"):
            SkillMatcher([], min_overlap=share)


# -- tools -------------------------------------------------------------------------------------------------------


def call(name, **input):
    return ToolCallPart("c1", name, input)


def limited(name, *tools):
    return skill(name, allowed_tools=tools)


def test_without_a_limit_every_tool_may_run():
    assert tool_refusal(call("delete"), []) is None
    assert tool_refusal(call("delete"), [COMMIT]) is None


def test_allowed_tools_are_enforced():
    """In the seed they were only printed."""
    active = [limited("review", "Read", "Grep")]
    assert tool_refusal(call("Read", path="a"), active) is None
    assert tool_refusal(call("Write", path="a"), active) == (
        "The tool Write was not run: the active skill review does not allow this call. These are allowed: Read, Grep."
    )
    assert "No tool is allowed." in tool_refusal(call("Read"), [limited("think")])
    assert tool_refusal(call("read"), active), "names are compared as they are written"


def test_several_active_skills_allow_what_any_of_them_names():
    active = [limited("a", "Read"), limited("b", "Write"), COMMIT]
    assert tool_refusal(call("Read"), active) is None
    assert tool_refusal(call("Write"), active) is None
    assert "a, b" in tool_refusal(call("Bash"), active), "a skill without a limit lifts none"


@pytest.mark.parametrize(
    ("rule", "input", "may"),
    [
        ("Bash(git:*)", {"command": "git status"}, True),
        ("Bash(git:*)", {"command": "git"}, True),
        ("Bash(git:*)", {"command": "gitk"}, False),
        ("Bash(git:*)", {"command": "git status; rm -rf ."}, False),
        ("Bash(git:*)", {"command": "git log | sh"}, False),
        ("Bash(git:*)", {"command": "git log $(rm -rf .)"}, False),
        ("Bash(git:*)", {"command": "git log\nrm -rf ."}, False),
        ("Bash(git:*)", {"description": "git status", "command": "rm -rf ."}, False),
        ("Bash(git:*)", {"command": ["rm", "git x"]}, False),
        ("Bash(git:*)", {"options": {"command": "rm"}, "first": "git x"}, False),
        ("Bash(git:*)", {}, False),
        ("Bash(git add *)", {"command": "git add a.py"}, True),
        ("Bash(git add *)", {"command": "git add a && rm b"}, False),
        ("Bash(src/*)", {"path": "src/a.py", "line": 3}, True),
        ("Bash(src/*)", {"path": "src/../secret"}, False),
        ("Bash(src/*)", {"path": "src/.."}, False),
        ("Bash()", {"command": "anything"}, True),
        ("Other(git:*)", {"command": "git status"}, False),
    ],
)
def test_patterns_of_arguments(rule, input, may):
    assert (tool_refusal(call("Bash", **input), [limited("x", rule)]) is None) is may


def test_arguments_that_are_no_object_are_looked_at_too():
    assert tool_refusal(ToolCallPart("c1", "Bash", "rm -rf ."), [limited("x", "Bash(git:*)")])
    assert tool_refusal(ToolCallPart("c1", "Bash", "git log"), [limited("x", "Bash(git:*)")]) is None
